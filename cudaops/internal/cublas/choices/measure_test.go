package choices

import (
	"errors"
	"slices"
	"testing"
)

func TestFastest(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		times [][]float64 // of each candidate by turn, the last again and again; negative: fails
		want  int
	}{
		{"one", [][]float64{{3}}, 0},
		{"the last", [][]float64{{3}, {2}, {1}}, 2},
		{"alike", [][]float64{{1}, {0.99}}, 0},
		{"the first fails", [][]float64{{-1}, {2}, {3}}, 1},
		{"the fastest fails", [][]float64{{2}, {-1}, {3}}, 0},
		{"slow at first", [][]float64{{1.4, 1}, {1.2}}, 0},
		{"too slow at first", [][]float64{{9, 1}, {2}}, 1},
	} {
		turn := make([]int, len(c.times))
		got, err := Fastest(len(c.times), false, func(i int, _ Pace) (float64, error) {
			ms := c.times[i][min(turn[i], len(c.times[i])-1)]
			turn[i]++
			if ms < 0 {
				return 0, broken
			}
			return ms, nil
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
		}
		if slices.Max(turn) > 3 {
			t.Errorf("%s: measured %v times", c.name, turn)
		}
	}
	if _, err := Fastest(2, false, func(int, Pace) (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("all fail: %v", err)
	}
	if _, err := Fastest(0, false, nil); err == nil {
		t.Error("the fastest of none")
	}
}

// TestFastestSustained: of the candidates that are nearly the fastest, a few, the one is chosen that is when it has run for long.
func TestFastestSustained(t *testing.T) {
	for _, c := range []struct {
		name      string
		briefly   []float64
		sustained [][]float64 // by turn, the last again and again; none: not to be measured
		want      int
	}{
		{"alone", []float64{2, 1, 3}, [][]float64{nil, nil, nil}, 1},
		{"other order", []float64{1, 1.01, 1.02}, [][]float64{{1.3}, {1.2}, {1.25}}, 1},
		{"too slow briefly", []float64{1, 1.01, 1.1}, [][]float64{{1.3}, {1.2}, nil}, 1},
		{"cool at first", []float64{1, 1.01, 1.02}, [][]float64{{1, 1, 1.3}, {1.2}, {1.25}}, 1},
		{"one odd time", []float64{1, 1, 1}, [][]float64{{1.3, 1.3, 1.3, 0.9, 1.3}, {1.2, 1.2, 1.2, 1.2, 1.9, 1.2}, {1.25}}, 1},
		{"alike", []float64{1.01, 1, 1.02}, [][]float64{{1.2}, {1.19}, {1.18}}, 0},
		{"at most six", []float64{1.03, 1, 1, 1, 1, 1, 1}, [][]float64{nil, {3}, {3}, {2}, {3}, {3}, {3}}, 3},
	} {
		turn := make([]int, len(c.briefly))
		got, err := Fastest(len(c.briefly), true, func(i int, pace Pace) (float64, error) {
			if pace == Brief {
				return c.briefly[i], nil
			}
			if c.sustained[i] == nil {
				t.Fatalf("%s: candidate %d is measured", c.name, i)
			}
			turn[i]++
			return c.sustained[i][min(turn[i], len(c.sustained[i]))-1], nil
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
		}
	}
	broken := errors.New("broken")
	if _, err := Fastest(2, true, func(_ int, pace Pace) (float64, error) {
		if pace == Sustained {
			return 0, broken
		}
		return 1, nil
	}); !errors.Is(err, broken) {
		t.Errorf("a failure when it has run for long: %v", err)
	}
}
