package choices

import (
	"errors"
	"testing"
)

func TestFastest(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		times []float64 // negative: fails
		want  int
	}{
		{"one", []float64{3}, 0},
		{"the last", []float64{3, 2, 1}, 2},
		{"alike", []float64{1, 0.99}, 0},
		{"the first fails", []float64{-1, 2, 3}, 1},
		{"the fastest fails", []float64{2, -1, 3}, 0},
	} {
		got, err := Fastest(len(c.times), func(i int) (float64, error) {
			if c.times[i] < 0 {
				return 0, broken
			}
			return c.times[i], nil
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
		}
	}
	if _, err := Fastest(2, func(int) (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("all fail: %v", err)
	}
}
