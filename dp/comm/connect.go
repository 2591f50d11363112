package comm

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// protocol is the version of what processes say to each other here.
const protocol = 1

// hello says who a process is.
type hello struct {
	Protocol    int
	Token       string `json:",omitempty"`
	Rank, World int
	PID         int
	Host        string
	Boot        string // names this start of the host
	Namespace   string // in which the PID counts
}

func newHello(p *job.Place) (hello, error) {
	host, err := os.Hostname()
	if err != nil {
		return hello{}, fmt.Errorf("comm: the name of this host: %w", err)
	}
	h := hello{Protocol: protocol, Rank: p.Rank, World: p.World, PID: os.Getpid(), Host: host}
	if h.Boot, err = bootID(); err == nil {
		h.Namespace, err = pidNamespace()
	}
	if err != nil {
		return hello{}, fmt.Errorf("comm: where this process runs: %w", err)
	}
	return h, nil
}

func (h *hello) String() string {
	return fmt.Sprintf("rank %d (process %d on %s)", h.Rank, h.PID, h.Host)
}

// near reports whether both processes can share memory.
func (h *hello) near(o *hello) bool { return h.Boot == o.Boot && h.Namespace == o.Namespace }

// gather waits, on rank 0, until the others have come.
func (s *Session) gather(w *wait, p *job.Place) error {
	listener, err := listen(w.ctx, p)
	if err != nil {
		return err
	}
	door := &door{s: s, open: map[net.Conn]struct{}{}}
	s.readers.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(50 * time.Millisecond) // too many open files, perhaps: that passes
				continue
			}
			if door.enter(conn) {
				s.readers.Go(func() { door.greet(conn) })
			}
		}
	})
	err = w.until(s.missing, func(letter) error { return nil })
	door.shut()
	if closing := listener.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	s.tell(&message{Kind: kindReady, Hello: &s.self})
	return nil
}

// listen opens rank 0's socket.
func listen(ctx context.Context, p *job.Place) (net.Listener, error) {
	if p.ListenFD >= 0 {
		f := os.NewFile(uintptr(p.ListenFD), "inherited socket")
		l, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("comm: the socket that rank 0 was given in %s=%d: %w", job.ListenVariable, p.ListenFD, err)
		}
		return l, nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", p.Endpoint())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("comm: rank 0 can't listen at %s: %w: set MASTER_PORT to another one, or start with tandem run, which finds one that is free", p.Endpoint(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("comm: rank 0 can't listen at %s: %w: MASTER_ADDR must be a name or address of its host", p.Endpoint(), err)
	}
	return l, nil
}

// missing are the ranks that rank 0 has no connection to.
func (s *Session) missing() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missingLocked()
}

func (s *Session) missingLocked() []int {
	var ranks []int
	for r, p := range s.peers {
		if p == nil && r != s.rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// door is where processes come in whom rank 0 doesn't know yet.
type door struct {
	s    *Session
	open map[net.Conn]struct{} // connections of those; nil when it is shut. Under s.mu
}

// enter takes note of a connection, or closes it if the door is shut.
func (d *door) enter(conn net.Conn) bool {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if d.open == nil {
		_ = conn.Close() // nobody has said anything yet
		return false
	}
	d.open[conn] = struct{}{}
	return true
}

// shut drops those that have not said who they are.
func (d *door) shut() {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	for conn := range d.open {
		_ = conn.Close() // they are strangers
	}
	d.open = nil
}

// greet hears who is there, and reads what it says from then on if it belongs to the job.
func (d *door) greet(conn net.Conn) {
	s := d.s
	p := &peer{conn: conn}
	_ = conn.SetReadDeadline(time.Now().Add(patience)) // fails as reading does
	m, err := readFrame(conn, maxHello)
	missing, why := []int(nil), ""
	if err == nil {
		missing, why = d.admit(p, m)
	}
	if err != nil || why != "" {
		if err == nil {
			_ = p.send(&message{Kind: kindRefuse, Text: why}) // it may be gone
		}
		_ = conn.Close() // a stranger's
		s.mu.Lock()
		delete(d.open, conn)
		s.mu.Unlock()
		return
	}
	if len(missing) > 0 {
		s.tell(&message{Kind: kindWaiting, Hello: &s.self, Missing: missing})
	}
	s.notify()
	s.read(p)
}

// admit makes a process that has come a peer, and tells who is missing now, or why it has no place here.
func (d *door) admit(p *peer, m *message) (missing []int, why string) {
	s := d.s
	if m.Kind != kindHello || m.Hello == nil {
		return nil, "it did not say who it is"
	}
	h := m.Hello
	got, want := sha256.Sum256([]byte(h.Token)), sha256.Sum256([]byte(s.token))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return nil, fmt.Sprintf("it has not the token of this job: processes of a job have the same %s", job.TokenVariable)
	}
	h.Token = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.Protocol != protocol:
		return nil, fmt.Sprintf("%v speaks version %d of the protocol and %v version %d: every rank must run the same version", h, h.Protocol, &s.self, protocol)
	case h.World != s.size:
		return nil, fmt.Sprintf("%v is one of %d and %v one of %d: every rank must have the same WORLD_SIZE", h, h.World, &s.self, s.size)
	case h.Rank < 0 || h.Rank >= s.size:
		return nil, fmt.Sprintf("%v is not one of the ranks 0 to %d", h, s.size-1)
	case h.Rank == 0:
		return nil, fmt.Sprintf("%v is there already, and now comes %v: every process needs a RANK of its own", &s.self, h)
	case s.peers[h.Rank] != nil:
		return nil, fmt.Sprintf("%v is there already, and now comes %v: every process needs a RANK of its own", &s.peers[h.Rank].hello, h)
	case d.open == nil:
		return nil, "the job has begun, or ended"
	}
	_ = p.conn.SetReadDeadline(time.Time{}) // fails as reading does
	p.hello = *h
	s.peers[h.Rank] = p
	delete(d.open, p.conn)
	return s.missingLocked(), ""
}

// find looks for rank 0 and waits until all have come.
func (s *Session) find(w *wait, endpoint string) error {
	var m *message
	var conn net.Conn
	var err error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		conn, m, err = s.knock(w, endpoint)
		if err == nil {
			break
		}
		if !passing(err) {
			return fmt.Errorf("comm: rank %d looks for rank 0 at %s: %w", s.rank, endpoint, err)
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
			continue
		case <-w.ctx.Done():
			err = contextError(w.ctx, fmt.Sprintf("comm: rank %d: %s while waiting for rank 0 at %s", s.rank, w.op, endpoint))
		case <-w.timer.C:
			err = fmt.Errorf("%w: rank %d looked for rank 0 at %s: %w", &TimeoutError{Op: w.op, Limit: s.limit, Missing: []int{0}}, s.rank, endpoint, err)
		}
		again.Stop()
		return err
	}
	switch {
	case m.Kind == kindRefuse:
		return errors.Join(fmt.Errorf("comm: rank %d was refused by rank 0 at %s: %s", s.rank, endpoint, m.Text), conn.Close())
	case m.Hello == nil:
		return errors.Join(fmt.Errorf("comm: rank %d looks for rank 0 at %s: somebody else answers there", s.rank, endpoint), conn.Close())
	}
	zero := &peer{conn: conn, hello: *m.Hello}
	s.mu.Lock()
	s.peers[0] = zero
	s.inbox = append(s.inbox, letter{0, m})
	s.mu.Unlock()
	s.readers.Go(func() { s.read(zero) })
	missing := []int{0}
	return w.until(func() []int { return missing }, func(l letter) error {
		switch l.Kind {
		case kindReady:
			missing = nil
		case kindWaiting:
			missing = l.Missing
		}
		return nil
	})
}

// knock connects to rank 0, says who this is and hears the answer.
func (s *Session) knock(w *wait, endpoint string) (net.Conn, *message, error) {
	dialer := net.Dialer{Deadline: w.start.Add(s.limit)}
	conn, err := dialer.DialContext(w.ctx, "tcp", endpoint)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(w.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails only when the connection has
	h := s.self
	h.Token = s.token
	err = conn.SetDeadline(dialer.Deadline)
	if err == nil {
		err = writeFrame(conn, &message{Kind: kindHello, Hello: &h})
	}
	var m *message
	if err == nil {
		m, err = readFrame(conn, maxFrame)
	}
	if stop(); err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, m, nil
}

// passing reports whether an error of looking for rank 0 may pass: it is not there yet, or its host is not known yet.
func passing(err error) bool {
	var unknown *net.DNSError
	var number syscall.Errno
	var network net.Error
	return errors.As(err, &unknown) || errors.As(err, &number) || errors.As(err, &network) && network.Timeout() ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled)
}

// hosts lists where the ranks are that can't share memory, if there are such.
func (s *Session) hosts() error {
	var far []string
	for _, p := range s.peers {
		if p != nil && !p.near(&s.self) {
			far = append(far, p.String())
		}
	}
	if len(far) == 0 {
		return nil
	}
	return fmt.Errorf("comm: %s can't share memory with %v: they run on other hosts or in containers of their own: ranks of several machines need NCCL, which this version does not have: "+
		"start all ranks on one host", strings.Join(far, ", "), &s.self)
}
