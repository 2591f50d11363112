package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-train/tandem/launcher"
)

// workersVariable marks a process of this program that is a worker which times steps when it is told to, and names the socket by which.
const workersVariable = "TANDEM_BENCH_WORKERS"

// workers are a job of this program, a process a card, that trains when it is told to, so that its samples come in turn with others'.
type workers struct {
	ends  []workerEnd
	said  bytes.Buffer // by the job
	ended chan error   // the job's end
	end   context.CancelFunc
	dir   string
}

// workerEnd is the connection to a worker.
type workerEnd struct {
	stdnet.Conn
	in *json.Decoder
}

// workOrder tells every worker to make steps; each answers with a workDone.
type workOrder struct {
	Team  team
	Steps int
}

type workDone struct {
	Seconds float64
	Error   string
}

// startWorkers starts so many workers and waits until they have come.
func startWorkers(ctx context.Context, n int) (_ *workers, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return nil, err
	}
	w := &workers{ended: make(chan error, 1), dir: dir}
	socket := filepath.Join(dir, "workers")
	var config stdnet.ListenConfig
	listen, err := config.Listen(ctx, "unix", socket)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer listen.Close() //nolint:errcheck // all have come, or the job has ended
	ctx, w.end = context.WithCancel(ctx)
	go func() {
		w.ended <- launcher.Run(ctx, launcher.Config{
			Program: self, Env: append(os.Environ(), workersVariable+"="+socket), Workers: make([]launcher.Worker, n), Stdout: &w.said, Stderr: &w.said,
		})
		listen.Close() //nolint:errcheck // whoever waits there waits for nobody
	}()
	for range n {
		conn, err := listen.Accept()
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.ends = append(w.ends, workerEnd{conn, json.NewDecoder(conn)})
	}
	return w, nil
}

// contender is a team of all workers.
func (w *workers) contender(t team) contender {
	return func(_ context.Context, n int) (took time.Duration, err error) {
		for _, e := range w.ends {
			if err := json.NewEncoder(e).Encode(workOrder{t, n}); err != nil {
				return 0, errors.Join(err, w.close())
			}
		}
		for _, e := range w.ends {
			var done workDone
			if err := e.in.Decode(&done); err != nil {
				return 0, errors.Join(fmt.Errorf("a worker: %w", err), w.close())
			}
			if done.Error != "" {
				return 0, errors.New(done.Error)
			}
			took = max(took, time.Duration(done.Seconds*float64(time.Second)))
		}
		return took, nil
	}
}

// close lets the workers end, and says what they have said if they did not end well. Only the first call does something.
func (w *workers) close() error {
	if w.ended == nil {
		return nil
	}
	for _, e := range w.ends {
		_ = e.Close() // by which the worker ends
	}
	if len(w.ends) == 0 {
		w.end() // nobody listens
	}
	err := <-w.ended
	w.ended = nil
	w.end()
	if err != nil {
		err = fmt.Errorf("the workers: %w: %s", err, bytes.TrimSpace(w.said.Bytes()))
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// work is what a worker does.
func work(ctx context.Context) error {
	var dialer stdnet.Dialer
	conn, err := dialer.DialContext(ctx, "unix", os.Getenv(workersVariable))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the other side has closed it, or learns that this one has
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	stage, err := newStage()
	if err != nil {
		return err
	}
	for {
		var o workOrder
		if err := in.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, stage.close())
		}
		var done workDone
		var took time.Duration
		err := stage.leave(func(t team) bool { return !t.beside(o.Team) }) // of the case before
		if err == nil {
			took, err = stage.contender(o.Team)(ctx, o.Steps)
		}
		if err != nil {
			done.Error = err.Error()
		}
		done.Seconds = took.Seconds()
		if err := out.Encode(done); err != nil {
			return errors.Join(err, stage.close())
		}
	}
}
