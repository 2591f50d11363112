package launcher

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// failedJob is a job of which one worker has failed, and the others for other reasons.
func failedJob() *JobError {
	at := time.Date(2026, 11, 30, 12, 0, 0, 123e6, time.UTC)
	e := &JobError{RunID: "run7", Restarts: 2, Failures: []WorkerFailure{
		{Rank: 0, PID: 100, Host: "h", Time: at.Add(-time.Second), ExitCode: 1, Error: "comm: group was broken\nby rank 1", Consequence: true, By: 1},
		{Rank: 2, PID: 102, Host: "h", Time: at.Add(-2 * time.Second), ExitCode: 143, Signal: "SIGTERM", Stopped: true, Consequence: true, By: -1},
		{Rank: 3, PID: 103, Host: "h", Time: at.Add(3 * time.Second), ExitCode: 137, Signal: "SIGKILL", Stopped: true, State: "was stopped (SIGSTOP)", By: -1},
		{Rank: 1, LocalRank: 1, PID: 101, Host: "h", Card: "physical card 3", Time: at, ExitCode: 2, Error: "panic: boom", Stack: "goroutine 1\nmain.main()",
			Tail: "step 7\npanic: boom", LogFile: "logs/run7/attempt_2/1/stderr.log", By: -1},
	}}
	for i, f := range e.Failures {
		if f.Error == "" {
			e.Failures[i].Error = f.ended()
		}
	}
	order(e.Failures)
	return e
}

func TestReport(t *testing.T) {
	want := `job run7 failed again after 2 restarts
root cause: rank 1 (pid 101, host h, physical card 3), 2026-11-30 12:00:00.123
  exit status 2
  error: panic: boom
  stack:
    goroutine 1
    main.main()
  the end of its stderr:
    step 7
    panic: boom
  all of it: logs/run7/attempt_2/1/stderr.log
then:
  rank 3 (pid 103, host h): stopped by the launcher: killed by SIGKILL; it was stopped (SIGSTOP)
  rank 0 (pid 100, host h): exit status 1: comm: group was broken (because of rank 1)
  rank 2 (pid 102, host h): stopped by the launcher: killed by SIGTERM
`
	e := failedJob()
	if diff := cmp.Diff(want, e.Report()); diff != "" {
		t.Error(diff)
	}
	if want := "launcher: rank 1 (pid 101) failed: panic: boom"; e.Error() != want {
		t.Errorf("%q, want %q", e.Error(), want)
	}
	if e.ExitCode() != 2 {
		t.Errorf("exit code %d", e.ExitCode())
	}
}

func TestReportAsJSON(t *testing.T) {
	e := failedJob()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	back := new(JobError)
	if err := json.Unmarshal(text, back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, back); diff != "" {
		t.Error(diff)
	}
}
