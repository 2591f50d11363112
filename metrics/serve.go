package metrics

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-train/tandem/internal/job"
)

// Path is where a [Server] has the metrics.
const Path = "/metrics"

// AddressError is the error of an address that can't be listened at.
type AddressError struct {
	Addr string // as given
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("metrics: serve at %q: %v; want HOST:PORT, such as localhost:9400, or port 0 for a free one", e.Addr, e.Err)
}

// Unwrap returns what the system or package net said.
func (e *AddressError) Unwrap() error { return e.Err }

// Server is an endpoint for Prometheus. Make one with [Serve], end it with [Server.Close].
type Server struct {
	listener net.Listener
	http     http.Server
	ended    chan struct{}
	err      error // what ended it, before Close
}

// Serve shows a trainer at addr, HOST:PORT. In a job of several processes on this host the port is that plus the process's local rank.
// An address that can't be had is an [*AddressError].
func Serve(addr string, t Trainer) (*Server, error) {
	place, err := ownPlace()
	if err != nil {
		return nil, err
	}
	ours, err := NewCollector(t)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{ours, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	at, err := shifted(addr, place.LocalRank)
	if err != nil {
		return nil, &AddressError{addr, err}
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return nil, &AddressError{addr, err}
	}
	mux := http.NewServeMux()
	mux.Handle(Path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &Server{listener: listener, http: http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.err = fmt.Errorf("metrics: serve at %s: %w", listener.Addr(), err)
		}
	}()
	return s, nil
}

// URL is where the metrics are.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + Path }

// Close ends the endpoint, and what is being asked of it. It returns the error that had ended it before, if one had.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.ended
	return errors.Join(s.err, err)
}

// shifted is an address some ports on. A port that is 0, for any, stays so.
func shifted(addr string, ports int) (string, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", fmt.Errorf("%q is no port", text)
	}
	if port > 0 {
		port += uint64(ports)
	}
	if port > 65535 {
		return "", fmt.Errorf("port %s plus local rank %d is past the last one", text, ports)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}

// ownPlace is this process's place in its job; the first of one where it is in none.
func ownPlace() (job.Place, error) {
	place, err := job.Lookup(os.LookupEnv)
	if err != nil {
		return job.Place{}, fmt.Errorf("metrics: %w", err)
	}
	if place == nil {
		return job.Place{}, nil
	}
	return *place, nil
}
