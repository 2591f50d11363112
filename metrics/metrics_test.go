package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a trainer that stands still: ranks 2 and 3, on a card each.
type fixed struct{ progress dp.Progress }

func (fixed) Rank() int               { return 2 }
func (fixed) Devices() []int          { return []int{1, 0} }
func (f fixed) Progress() dp.Progress { return f.progress }

var halfway = fixed{dp.Progress{
	Steps: 10, Samples: 640, Time: 2500 * time.Millisecond, Loss: 0.125, LastSamples: 64, LastTime: 200 * time.Millisecond,
	Collectives: []time.Duration{time.Second, 1500 * time.Millisecond},
}}

func register(t *testing.T, trainer metrics.Trainer) *prometheus.Registry {
	t.Helper()
	c, err := metrics.NewCollector(trainer)
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry() // which also checks that what comes was described
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCollector compares all that there is, and has promtool's linter look at it.
func TestCollector(t *testing.T) {
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2x16MiB", "CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_LIMIT": "0:50%"})
	t.Setenv("RANK", "2")
	t.Setenv("WORLD_SIZE", "4")
	t.Setenv("MASTER_ADDR", "localhost")
	t.Setenv("MASTER_PORT", "29500")
	t.Setenv("TORCHELASTIC_RESTART_COUNT", "3")
	m, err := cudaops.Alloc(0, 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}()
	uuid := func(card int) string {
		p, err := cudaops.DeviceProperties(card)
		if err != nil {
			t.Fatal(err)
		}
		return p.UUID
	}
	want := strings.NewReplacer("UUID0", uuid(0), "UUID1", uuid(1)).Replace(`
# HELP tandem_collective_seconds_total Time in collectives on the host; where cards are linked, the wait before theirs.
# TYPE tandem_collective_seconds_total counter
tandem_collective_seconds_total{rank="2"} 1
tandem_collective_seconds_total{rank="3"} 1.5
# HELP tandem_loss Loss of the last step, over the whole batch.
# TYPE tandem_loss gauge
tandem_loss{rank="2"} 0.125
# HELP tandem_memory_allocated_bytes Card memory that this process uses.
# TYPE tandem_memory_allocated_bytes gauge
tandem_memory_allocated_bytes{card="0",rank="3",uuid="UUID0"} 3.145728e+06
tandem_memory_allocated_bytes{card="1",rank="2",uuid="UUID1"} 0
# HELP tandem_memory_limit_bytes Card memory that this process may hold, and what limits it.
# TYPE tandem_memory_limit_bytes gauge
tandem_memory_limit_bytes{card="0",rank="3",source="CUDA_DEVICE_LIMIT",uuid="UUID0"} 8.388608e+06
tandem_memory_limit_bytes{card="1",rank="2",source="the card's memory",uuid="UUID1"} 1.6777216e+07
# HELP tandem_memory_reserved_bytes Card memory that this process uses or caches.
# TYPE tandem_memory_reserved_bytes gauge
tandem_memory_reserved_bytes{card="0",rank="3",uuid="UUID0"} 3.145728e+06
tandem_memory_reserved_bytes{card="1",rank="2",uuid="UUID1"} 0
# HELP tandem_restarts_total How often the launcher has started the job again.
# TYPE tandem_restarts_total counter
tandem_restarts_total{rank="2"} 3
# HELP tandem_samples_per_second Samples of the last step, per second of it.
# TYPE tandem_samples_per_second gauge
tandem_samples_per_second{rank="2"} 320
# HELP tandem_samples_total Samples trained on by the ranks of this process.
# TYPE tandem_samples_total counter
tandem_samples_total{rank="2"} 640
# HELP tandem_step_duration_seconds Time of steps, from call to loss.
# TYPE tandem_step_duration_seconds summary
tandem_step_duration_seconds_sum{rank="2"} 2.5
tandem_step_duration_seconds_count{rank="2"} 10
`)
	r := register(t, halfway)
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// TestBeforeTheFirstStep: what is not known is left out.
func TestBeforeTheFirstStep(t *testing.T) {
	cudaopstest.Setup(t, "2x16MiB", "")
	r := register(t, fixed{dp.Progress{Loss: math.NaN()}})
	n, err := testutil.GatherAndCount(r, "tandem_loss", "tandem_samples_per_second", "tandem_collective_seconds_total")
	if err != nil || n != 0 {
		t.Errorf("%d series, %v; want none", n, err)
	}
	if n, err := testutil.GatherAndCount(r, "tandem_samples_total"); err != nil || n != 1 {
		t.Errorf("samples: %d series, %v", n, err)
	}
}

// TestErrorsAreTold: cards that can't be asked are an error of the scrape, not a gap in it.
func TestErrorsAreTold(t *testing.T) {
	cudaopstest.Setup(t, "1x16MiB", "")
	_, err := register(t, halfway).Gather()
	if err == nil || !strings.Contains(err.Error(), "Invalid device id 1") {
		t.Errorf("error %v", err)
	}
}

// scrape reads what an endpoint has, as Prometheus does: of each metric a value.
func scrape(t *testing.T, url string) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", url, resp.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	values := map[string]float64{}
	for name, f := range families {
		m := f.Metric[0] // getters of what it is not give 0
		values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetSummary().GetSampleSum()
	}
	return values
}

func TestServe(t *testing.T) {
	cudaopstest.Setup(t, "2x16MiB", "")
	s, err := metrics.Serve("localhost:0", halfway)
	if err != nil {
		t.Fatal(err)
	}
	got := scrape(t, s.URL())
	for name, want := range map[string]float64{"tandem_loss": 0.125, "tandem_samples_total": 640, "tandem_step_duration_seconds": 2.5} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if got["go_goroutines"] < 1 {
		t.Errorf("go_goroutines is %v", got["go_goroutines"])
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	var dialer net.Dialer
	if c, err := dialer.DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(s.URL(), "http://"), metrics.Path)); err == nil {
		t.Error("it still listens after Close", c.Close())
	}
}

// TestPortOfALocalRank: the workers of a host do not get into each other's way.
func TestPortOfALocalRank(t *testing.T) {
	cudaopstest.Setup(t, "2x16MiB", "")
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	taken := l.Addr().String()
	if _, err := metrics.Serve(taken, halfway); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is in use: %v", err)
	}
	for name, value := range map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"} {
		t.Setenv(name, value)
	}
	s, err := metrics.Serve(taken, halfway)
	if err != nil {
		t.Skipf("the port after a free one is in use: %v", err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, first, _ := net.SplitHostPort(taken)
	if strings.Contains(s.URL(), ":"+first+"/") {
		t.Errorf("local rank 1 is at %s", s.URL())
	}
	scrape(t, s.URL())
}

func TestBadAddress(t *testing.T) {
	cudaopstest.Setup(t, "2x16MiB", "")
	for _, addr := range []string{"", "9400", "localhost", "localhost:http-metrics", "localhost:70000", "localhost:-1", "256.0.0.1:9400", "[::1:9400"} {
		s, err := metrics.Serve(addr, halfway)
		var wrong *metrics.AddressError
		if !errors.As(err, &wrong) || wrong.Addr != addr || !strings.Contains(err.Error(), "localhost:9400") {
			t.Errorf("%q: %v, error %v", addr, s, err)
		}
	}
	for name, value := range map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"} {
		t.Setenv(name, value)
	}
	if _, err := metrics.Serve("localhost:65535", halfway); err == nil || !strings.Contains(err.Error(), "past the last") {
		t.Errorf("the port after the last: %v", err)
	}
	t.Setenv("RANK", "first")
	if _, err := metrics.Serve("localhost:0", halfway); err == nil || !strings.Contains(err.Error(), `RANK="first"`) {
		t.Errorf("a rank without meaning: %v", err)
	}
}
