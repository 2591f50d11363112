package launcher

import "fmt"

// The supervisor is a state machine: [next] says which state follows which event and what is to be done then, and knows nothing of
// processes. The driver (supervise_linux.go) does it and turns what comes of it into events.
//
//	listening ──listened──▶ starting ──started──▶ running ──────last ended──────┐
//	    │                    ▲    │                  │                          │
//	    │ listen failed      │    │ start failed,    │ one ended badly,         │
//	    ▼                    │    │ interrupt        │ interrupt                │
//	  failed                 │    ▼                  │                          ▼
//	                         │  stopping ◀───────────┘ ──────last ended─────▶ reaped ──swept──▶ succeeded, failed
//	                         │    │                                           ▲   │             or interrupted
//	                         │    │ grace over, interrupt                     │   │
//	                         │    ▼                                           │   │
//	                         │  killing ───last ended, or it takes too long───┘   │
//	                         └───────────swept, with restarts left after bad──────┘
//
// A worker that ends well while others run changes nothing. An interrupt while a failed job is stopped kills what is left, and the
// job is not started again; its failure stays the result.

// phase is what the supervisor is at.
type phase uint8

const (
	listening phase = iota // rank 0's socket is being bound
	starting               // workers are being started
	running                // all have been started, and none has failed
	stopping               // workers have been asked to end, and have the grace time for it
	killing                // workers have been killed, and are waited for
	reaped                 // no worker runs; what they have started is killed, their output read to its end
	succeeded
	failed
	interrupted
)

var phaseNames = [...]string{"listening", "starting", "running", "stopping", "killing", "reaped", "succeeded", "failed", "interrupted"}

func (p phase) String() string { return phaseNames[p] }

// final reports whether nothing follows.
func (p phase) final() bool { return p >= succeeded }

// verdict is what is known of how an attempt goes.
type verdict uint8

const (
	open verdict = iota // it runs
	good                // every worker ended well
	bad                 // a worker failed or could not be started
	cut                 // the caller's context ended first
)

var verdictNames = [...]string{"open", "good", "bad", "cut"}

func (v verdict) String() string { return verdictNames[v] }

// state is a state of the machine.
type state struct {
	phase    phase
	verdict  verdict
	restarts int // that are left
}

// event is what happens.
type event uint8

const (
	nothing        event = iota // no event: the driver waits for one
	listened                    // the socket is bound, or another node binds it
	listenFailed                //
	started                     // every worker has been started
	startFailed                 // one could not be
	endedWell                   // a worker has ended with 0; others run
	endedBadly                  // a worker has ended with something else; others run
	lastEndedWell               // none runs any more, if any did
	lastEndedBadly              //
	graceOver                   // the grace time is over
	killOver                    // workers that were killed long ago still have not ended
	interrupt                   // the caller's context has ended
	interruptAgain              // a second signal has come
	swept                       // nothing of the attempt runs, all output has been read, reports are collected
)

var eventNames = [...]string{"nothing", "listened", "listenFailed", "started", "startFailed", "endedWell", "endedBadly",
	"lastEndedWell", "lastEndedBadly", "graceOver", "killOver", "interrupt", "interruptAgain", "swept"}

func (e event) String() string { return eventNames[e] }

// action is what a transition asks for.
type action uint8

const (
	doNothing action = iota
	doStart          // start every worker; gives started, startFailed, or interrupt
	doStop           // signal every worker that runs, and begin the grace time
	doKill           // kill every worker that runs
	doSweep          // end what workers have left; gives swept
)

var actionNames = [...]string{"nothing", "start", "stop", "kill", "sweep"}

func (a action) String() string { return actionNames[a] }

// next is the machine. An event that cannot happen in a state is a mistake of the driver, and panics.
func next(s state, e event) (state, action) {
	to := func(p phase, a action) (state, action) { s.phase = p; return s, a }
	switch s.phase {
	case listening:
		switch e {
		case listened:
			return to(starting, doStart)
		case listenFailed:
			s.verdict = bad
			return to(failed, doNothing)
		}
	case starting:
		switch e {
		case started:
			return to(running, doNothing)
		case startFailed: // it would fail again
			s.verdict, s.restarts = bad, 0
			return to(stopping, doStop)
		case interrupt:
			s.verdict = cut
			return to(stopping, doStop)
		}
	case running:
		switch e {
		case endedWell:
			return s, doNothing
		case lastEndedWell:
			s.verdict = good
			return to(reaped, doSweep)
		case endedBadly:
			s.verdict = bad
			return to(stopping, doStop)
		case lastEndedBadly:
			s.verdict = bad
			return to(reaped, doSweep)
		case interrupt:
			s.verdict = cut
			return to(stopping, doStop)
		}
	case stopping:
		switch e {
		case endedWell, endedBadly:
			return s, doNothing
		case lastEndedWell, lastEndedBadly:
			return to(reaped, doSweep)
		case graceOver, interruptAgain:
			return to(killing, doKill)
		case interrupt:
			s.restarts = 0
			return to(killing, doKill)
		}
	case killing:
		switch e {
		case endedWell, endedBadly, interruptAgain:
			return s, doNothing
		case lastEndedWell, lastEndedBadly:
			return to(reaped, doSweep)
		case killOver: // what it holds, the next attempt would miss
			s.restarts = 0
			return to(reaped, doSweep)
		case interrupt:
			s.restarts = 0
			return s, doNothing
		}
	case reaped:
		if e != swept {
			break
		}
		switch {
		case s.verdict == good:
			return to(succeeded, doNothing)
		case s.verdict == cut:
			return to(interrupted, doNothing)
		case s.restarts > 0:
			s.verdict = open
			s.restarts--
			return to(starting, doStart)
		default:
			return to(failed, doNothing)
		}
	}
	panic(fmt.Sprintf("launcher: %v while %v (%v)", e, s.phase, s.verdict))
}
