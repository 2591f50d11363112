package comm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
)

func TestErrorTexts(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&comm.MismatchError{Calls: []comm.Call{
			{Rank: 0, Group: 3, Op: comm.OpAllReduce, Len: 10},
			{Rank: 1, Group: 3, Op: comm.OpBroadcast, Len: 10, Root: 2},
			{Rank: 2, Group: 3, Op: comm.OpAllReduce, Len: 10},
		}}, "comm: ranks have called different collectives: ranks 0, 2 called all_reduce of 10 elements in the group of 3; " +
			"rank 1 called broadcast of 10 elements from rank 2 in the group of 3: every rank must make the same calls in the same order"},
		{&comm.MismatchError{Calls: []comm.Call{
			{Rank: 0, Group: 2, Op: comm.OpBarrier},
			{Rank: 1, Group: 2, Op: comm.OpGather, Len: 3, Root: 0, Counts: []int{1, 2}},
		}}, "comm: ranks have called different collectives: rank 0 called barrier in the group of 2; " +
			"rank 1 called gather of counts [1 2] to rank 0 in the group of 2: every rank must make the same calls in the same order"},
		{&comm.BrokenError{Rank: -1, Cause: &comm.TimeoutError{Op: comm.OpReduce, Limit: time.Second, Missing: []int{1}}},
			"comm: group was broken: comm: reduce: rank 1 did not come within 1s: find out what ended or delayed it, or set TANDEM_TIMEOUT to more"},
		{&comm.BrokenError{Rank: 1, Cause: comm.ErrClosed}, "comm: group was broken by rank 1: the group was closed"},
		{&comm.ArgumentError{Rank: 1, Op: comm.OpBroadcast, Why: "root 4 is not in the group of 2 ranks"},
			"comm: rank 1: broadcast: root 4 is not in the group of 2 ranks"},
		{&comm.BrokenError{Rank: 1, Cause: errors.New("no room")}, "comm: group was broken by rank 1: no room"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestNewLocalErrors(t *testing.T) {
	for _, world := range []int{0, -3} {
		if _, err := comm.NewLocal(world); err == nil {
			t.Errorf("a group of %d ranks gave no error", world)
		}
	}
	for _, limit := range []time.Duration{0, -time.Second} {
		if _, err := comm.NewLocal(2, comm.Timeout(limit)); err == nil {
			t.Errorf("a timeout of %v gave no error", limit)
		}
	}
}
