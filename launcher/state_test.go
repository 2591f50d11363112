package launcher

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// try is next, or says that the event cannot happen in the state.
func try(s state, e event) (to state, do action, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			ok = false
		}
	}()
	to, do = next(s, e)
	return to, do, true
}

// step is a transition that was found.
type step struct {
	from state
	e    event
	to   state
	do   action
}

// explore finds all that can happen from the beginning.
func explore(restarts int) (seen []state, steps []step) {
	seen = []state{{phase: listening, restarts: restarts}}
	for i := 0; i < len(seen); i++ {
		for e := nothing; int(e) < len(eventNames); e++ {
			to, do, ok := try(seen[i], e)
			if !ok {
				continue
			}
			steps = append(steps, step{seen[i], e, to, do})
			if !slices.Contains(seen, to) {
				seen = append(seen, to)
			}
		}
	}
	return seen, steps
}

// TestTransitions has the whole machine as a table: in each phase, which events can happen and what follows.
func TestTransitions(t *testing.T) {
	want := strings.Fields(`
		listening:listened>starting/start listening:listenFailed>failed/nothing
		starting:started>running/nothing starting:startFailed>stopping/stop starting:interrupt>stopping/stop
		running:endedWell>running/nothing running:endedBadly>stopping/stop running:lastEndedWell>reaped/sweep running:lastEndedBadly>reaped/sweep
		running:interrupt>stopping/stop
		stopping:endedWell>stopping/nothing stopping:endedBadly>stopping/nothing stopping:lastEndedWell>reaped/sweep stopping:lastEndedBadly>reaped/sweep
		stopping:graceOver>killing/kill stopping:interrupt>killing/kill stopping:interruptAgain>killing/kill
		killing:endedWell>killing/nothing killing:endedBadly>killing/nothing killing:lastEndedWell>reaped/sweep killing:lastEndedBadly>reaped/sweep
		killing:killOver>reaped/sweep killing:interrupt>killing/nothing killing:interruptAgain>killing/nothing
		reaped:swept>succeeded/nothing reaped:swept>interrupted/nothing reaped:swept>failed/nothing reaped:swept>starting/start`)
	slices.Sort(want)
	var got []string
	_, steps := explore(2)
	for _, s := range steps {
		got = append(got, fmt.Sprintf("%v:%v>%v/%v", s.from.phase, s.e, s.to.phase, s.do))
	}
	slices.Sort(got)
	got = slices.Compact(got)
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("unexpected: %s", g)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("missing: %s", w)
		}
	}
}

// TestStatesHold checks what holds in every state that can be reached.
func TestStatesHold(t *testing.T) {
	seen, steps := explore(2)
	verdicts := map[phase][]verdict{
		listening: {open}, starting: {open}, running: {open}, stopping: {bad, cut}, killing: {bad, cut}, reaped: {good, bad, cut},
		succeeded: {good}, failed: {bad}, interrupted: {cut},
	}
	for _, s := range seen {
		if !slices.Contains(verdicts[s.phase], s.verdict) {
			t.Errorf("%v has the verdict %v", s.phase, s.verdict)
		}
		if s.restarts < 0 || s.restarts > 2 {
			t.Errorf("%+v", s)
		}
	}
	ends := map[state]bool{}
	for _, s := range seen {
		ends[s] = s.phase.final()
	}
	for _, s := range steps {
		if s.from.phase.final() {
			t.Errorf("%v in %v leads to %v", s.e, s.from.phase, s.to.phase)
		}
		again := s.from.phase == reaped && s.to.phase == starting
		switch {
		case again && s.to.restarts != s.from.restarts-1:
			t.Errorf("%+v: it is started again for nothing", s)
		case !again && s.to.restarts != s.from.restarts && s.to.restarts != 0:
			t.Errorf("%+v: restarts are lost", s)
		}
		// A verdict stands, but for the next attempt.
		if s.from.verdict != open && s.to.verdict != s.from.verdict && !again {
			t.Errorf("%+v: the verdict changes", s)
		}
	}
	// From everywhere an end can be reached.
	for changed := true; changed; {
		changed = false
		for _, s := range steps {
			if ends[s.to] && !ends[s.from] {
				ends[s.from], changed = true, true
			}
		}
	}
	for s, ok := range ends {
		if !ok {
			t.Errorf("%+v never ends", s)
		}
	}
}

func TestWalks(t *testing.T) {
	for name, tc := range map[string]struct {
		restarts int
		events   []event
		want     state
	}{
		"success":                     {0, []event{listened, started, endedWell, lastEndedWell, swept}, state{succeeded, good, 0}},
		"failure":                     {0, []event{listened, started, endedBadly, lastEndedBadly, swept}, state{failed, bad, 0}},
		"failure of the last":         {0, []event{listened, started, endedWell, lastEndedBadly, swept}, state{failed, bad, 0}},
		"grace needed":                {0, []event{listened, started, endedBadly, endedWell, graceOver, lastEndedBadly, swept}, state{failed, bad, 0}},
		"restart":                     {2, []event{listened, started, lastEndedBadly, swept, started, lastEndedWell, swept}, state{succeeded, good, 1}},
		"no start, no restart":        {2, []event{listened, startFailed, lastEndedWell, swept}, state{failed, bad, 0}},
		"interrupt":                   {2, []event{listened, started, interrupt, interruptAgain, lastEndedBadly, swept}, state{interrupted, cut, 2}},
		"interrupt after a failure":   {2, []event{listened, started, endedBadly, interrupt, lastEndedBadly, swept}, state{failed, bad, 0}},
		"interrupt before a restart":  {1, []event{listened, started, lastEndedBadly, swept, interrupt, lastEndedWell, swept}, state{interrupted, cut, 0}},
		"what does not die is let go": {1, []event{listened, started, endedBadly, graceOver, killOver, swept}, state{failed, bad, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := state{phase: listening, restarts: tc.restarts}
			for _, e := range tc.events {
				s, _ = next(s, e)
			}
			if s != tc.want {
				t.Errorf("%+v, want %+v", s, tc.want)
			}
		})
	}
}
