package dp

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestHeadersComeAsTheyWent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	words := make([]int32, headerWords)
	var got header
	for range 200 {
		h := header{call: kind(1 + rng.IntN(5)), stop: rng.IntN(2) == 0, x: form{ints: rng.IntN(2) == 0}}
		for range rng.IntN(maxDims + 1) {
			h.x.shape = append(h.x.shape, rng.IntN(1<<31))
		}
		h.put(words)
		got.get(words)
		if got.call != h.call || got.stop != h.stop || got.x.ints != h.x.ints || !slices.Equal(got.x.shape, h.x.shape) {
			t.Fatalf("%+v came as %+v", h, got)
		}
	}
}

func TestDecide(t *testing.T) {
	const step, shard, forward, load, join = stepCall, shardCall, forwardCall, loadCall, joinCall
	for _, c := range []struct {
		name  string
		calls []kind
		stop  []int // ranks whose context has ended
		want  decision
		err   string
	}{
		{name: "all step", calls: []kind{step, step}, want: decision{call: step, stop: -1}},
		{name: "all join", calls: []kind{join, join, join}, want: decision{call: join, stop: -1}},
		{name: "one rank", calls: []kind{load}, want: decision{call: load, stop: -1}},
		{name: "served shards", calls: []kind{forward, shard, join}, want: decision{call: shard, stop: -1}},
		{name: "served step", calls: []kind{step, forward}, want: decision{call: step, stop: -1}},
		{name: "no more batches", calls: []kind{forward, step, forward}, want: decision{call: forward, end: true, stop: -1}},
		{name: "stop before anything", calls: []kind{step, forward, load}, stop: []int{2, 1}, want: decision{call: step, stop: 1}},
		{name: "two ways to feed", calls: []kind{step, shard}, err: "rank 0 has called Step, rank 1 has called StepShard"},
		{name: "two places to wait", calls: []kind{forward, join}, err: "rank 0 has called Forward, rank 1 has called Join"},
		{name: "all three", calls: []kind{join, shard, step}, err: "rank 2 has called Step"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := make([]header, len(c.calls))
			for r, k := range c.calls {
				h[r] = header{call: k, stop: slices.Contains(c.stop, r)}
			}
			got, err := decide(h)
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
			case err != nil:
				t.Error(err)
			case got != c.want:
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
