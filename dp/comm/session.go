package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// Session connects the processes of a job, each a rank, so that they can make groups. Each has a connection to rank 0 that stays open:
// where one ends without goodbye, a process has ended, and the groups of the session break at once.
type Session struct {
	rank, size int
	limit      time.Duration
	self       hello
	token      string

	making sync.Mutex // one NewGroup at a time
	call   int        // of NewGroup; under making

	mu      sync.Mutex
	peers   []*peer      // by rank, nil where there is no connection
	inbox   []letter     // for the call of Connect or NewGroup in progress, or the next
	lost    *BrokenError // the first rank that is gone, or nil
	groups  map[*sharedGroup]struct{}
	closed  bool
	changed chan struct{} // a token when inbox, peers or lost have changed
	readers sync.WaitGroup
}

// letter is a message with its sender.
type letter struct {
	from int
	*message
}

// peer is another process.
type peer struct {
	hello
	conn net.Conn
	mu   sync.Mutex // one writer at a time
}

// patience limits what must not take long, however long the session's own limit is: a stranger's first words, and to send a message.
// parting limits how long one waits for the others to close a connection that one has left.
const (
	patience = 10 * time.Second
	parting  = time.Second
)

// Connect meets the other processes of a job: it returns when all have come. Rank 0 listens at the job's endpoint, the others look for it
// there until the limit passes. Every process must have the job's token.
func Connect(ctx context.Context, p *job.Place, opts ...Option) (*Session, error) {
	cfg, err := configure(opts)
	if err != nil {
		return nil, err
	}
	if p.World < 1 || p.Rank < 0 || p.Rank >= p.World {
		return nil, fmt.Errorf("comm: rank %d of %d processes: the ranks of a job are 0 to its number of processes - 1", p.Rank, p.World)
	}
	s := &Session{rank: p.Rank, size: p.World, limit: cfg.limit, token: p.Token, peers: make([]*peer, p.World),
		groups: map[*sharedGroup]struct{}{}, changed: make(chan struct{}, 1)}
	if s.size == 1 {
		return s, nil
	}
	if s.self, err = newHello(p); err != nil {
		return nil, err
	}
	wait := s.newWait(ctx, OpConnect, 0)
	defer wait.end()
	if s.rank == 0 {
		err = s.gather(wait, p)
	} else {
		err = s.find(wait, p.Endpoint())
	}
	if err != nil {
		s.fail(0, err)
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Rank is this process's number.
func (s *Session) Rank() int { return s.rank }

// Size is the number of processes.
func (s *Session) Size() int { return s.size }

// Close leaves the session and closes its groups. The others' are broken by that, and they can make no new ones.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.lost == nil {
		s.lost = &BrokenError{Rank: s.rank, Cause: ErrClosed}
	}
	var groups []*sharedGroup
	for g := range s.groups {
		groups = append(groups, g)
	}
	peers := slices.Clone(s.peers)
	s.mu.Unlock()
	s.notify()
	var errs []error
	for _, g := range groups {
		errs = append(errs, g.team(g.seg.world).Close())
	}
	for _, p := range peers {
		if p != nil {
			p.part()
		}
	}
	s.readers.Wait()
	return errors.Join(errs...)
}

// read takes a peer's messages until it leaves.
func (s *Session) read(p *peer) {
	defer p.conn.Close() //nolint:errcheck // both sides are through with it
	for {
		m, err := readFrame(p.conn, maxFrame)
		switch {
		case err != nil:
			s.lose(p.Rank, &RemoteError{Rank: p.Rank, Text: fmt.Sprintf("%v has ended: it left without a word (%v)", &p.hello, err)})
			return
		case m.Kind == kindGoodbye:
			s.lose(p.Rank, ErrClosed)
			return
		case m.Kind == kindLost && m.Why != nil:
			cause, _ := m.Why.errors()
			s.lose(cause.Rank, cause.Cause)
		default:
			s.mu.Lock()
			s.inbox = append(s.inbox, letter{p.Rank, m})
			s.mu.Unlock()
			s.notify()
		}
	}
}

// lose notes that a rank is gone, and tells everybody whom it concerns. A rank that has closed the session has broken its groups itself.
func (s *Session) lose(rank int, cause error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	if s.lost == nil {
		s.lost = &BrokenError{Rank: rank, Cause: cause}
	}
	var groups []*sharedGroup
	if !errors.Is(cause, ErrClosed) {
		for g := range s.groups {
			groups = append(groups, g)
		}
	}
	s.mu.Unlock()
	s.notify()
	for _, g := range groups {
		g.lose(rank, cause)
	}
	if s.rank == 0 {
		rec := newRecord(rank, rank, cause, false)
		s.tell(&message{Kind: kindLost, Why: &rec})
	}
}

func (s *Session) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// tell sends a message to all that this process is connected to.
func (s *Session) tell(m *message) {
	s.mu.Lock()
	peers := slices.Clone(s.peers)
	s.mu.Unlock()
	for _, p := range peers {
		if p != nil {
			_ = p.send(m) // one that can't be reached is gone, which its reader notices
		}
	}
}

// fail tells the others that a call of Connect or NewGroup has failed. Who has not made it yet learns it when it does.
func (s *Session) fail(call int, err error) {
	rec := newRecord(s.rank, s.rank, err, false)
	var broken *BrokenError
	if errors.As(err, &broken) {
		rec = newRecord(broken.Rank, broken.Rank, broken.Cause, false)
	}
	rec.All = rec.Timeout != nil || rec.Disagreement != nil
	s.tell(&message{Kind: kindFail, Call: call, Why: &rec})
}

// send sends the peer a message.
func (p *peer) send(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return writeFrame(p.conn, m)
}

// part says goodbye. The peer closes the connection when it hears that.
func (p *peer) part() {
	// What fails here fails because the peer is gone already.
	_ = p.send(&message{Kind: kindGoodbye})
	if tcp, ok := p.conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = p.conn.SetReadDeadline(time.Now().Add(parting))
}

// wait is the state of a call of Connect or NewGroup that waits for others.
type wait struct {
	ctx   context.Context
	s     *Session
	op    Op
	call  int
	timer *time.Timer
	start time.Time
}

func (s *Session) newWait(ctx context.Context, op Op, call int) *wait {
	return &wait{ctx: ctx, s: s, op: op, call: call, timer: time.NewTimer(s.limit), start: time.Now()}
}

func (w *wait) end() { w.timer.Stop() }

// until hands the messages of this call to take until no rank is missing any more.
func (w *wait) until(missing func() []int, take func(l letter) error) error {
	s := w.s
	for {
		s.mu.Lock()
		var l letter
		// Those of later calls stay for these: who has gone on to one may have failed there already.
		if i := slices.IndexFunc(s.inbox, func(l letter) bool { return l.Call <= w.call }); i >= 0 {
			l = s.inbox[i]
			s.inbox = slices.Delete(s.inbox, i, i+1)
		}
		lost := s.lost
		s.mu.Unlock()
		left := missing()
		switch {
		case l.message == nil && len(left) == 0:
			return nil
		case l.message == nil && lost != nil:
			return lost
		case l.message == nil:
			select {
			case <-s.changed:
			case <-w.ctx.Done():
				return contextError(w.ctx, fmt.Sprintf("comm: rank %d: %s while waiting for %s", s.rank, w.op, names(left)))
			case <-w.timer.C:
				return &TimeoutError{Op: w.op, Limit: s.limit, Missing: left}
			}
		case l.Call != w.call: // of one that has failed here
		case l.Kind == kindFail && l.Why != nil:
			_, err := l.Why.errors()
			return err
		default:
			if err := take(l); err != nil {
				return err
			}
		}
	}
}
