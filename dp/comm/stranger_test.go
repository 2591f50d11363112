package comm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/job"
)

// dial connects to rank 0 of a job, once it listens.
func dial(t *testing.T, p *job.Place) net.Conn {
	t.Helper()
	for {
		conn, err := net.Dial("tcp", p.Endpoint())
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() }) // the other side may have
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// hello is the first message of a process, as JSON.
func hello(t *testing.T, text string) *comm.Message {
	t.Helper()
	m := new(comm.Message)
	if err := json.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Strangers are turned away, and the job goes on.
func TestStrangers(t *testing.T) {
	all := places(t, 3)
	sessions := make(chan *comm.Session)
	start := func(p *job.Place) {
		go func() {
			s, err := comm.Connect(t.Context(), p)
			if err != nil {
				t.Error(err)
			}
			sessions <- s
		}()
	}
	start(all[0])
	start(all[1])
	dial(t, all[0]) // and says nothing
	for name, text := range map[string]string{
		"http":    "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"garbage": "\x00\x00\x00\x04{{{{",
		"long":    "\xff\xff\xff\xff",
	} {
		conn := dial(t, all[0])
		if _, err := io.WriteString(conn, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s: was answered", name)
		}
	}
	for _, tt := range []struct{ hello, want string }{
		{`{"Kind":"hello","Hello":{"Protocol":1,"Token":"guess","Rank":1,"World":3}}`, "token"},
		{`{"Kind":"hello","Hello":{"Protocol":1,"Rank":1,"World":3}}`, "token"},
		{`{"Kind":"ready"}`, "who"},
		{`{"Kind":"hello","Hello":{"Protocol":9,"Token":"secret","Rank":1,"World":3,"PID":7,"Host":"far"}}`, "rank 1 (process 7 on far) speaks version 9 of the protocol and rank 0 (process "},
		{`{"Kind":"hello","Hello":{"Protocol":1,"Token":"secret","Rank":1,"World":5,"PID":7,"Host":"far"}}`, "rank 1 (process 7 on far) is one of 5 and rank 0 (process "},
		{`{"Kind":"hello","Hello":{"Protocol":1,"Token":"secret","Rank":3,"World":3,"PID":7,"Host":"far"}}`, "rank 3 (process 7 on far) is not one"},
		{`{"Kind":"hello","Hello":{"Protocol":1,"Token":"secret","Rank":0,"World":3,"PID":7,"Host":"far"}}`, "and now comes rank 0 (process 7 on far)"},
	} {
		conn := dial(t, all[0])
		if err := comm.WriteFrame(conn, hello(t, tt.hello)); err != nil {
			t.Fatal(err)
		}
		m, err := comm.ReadFrame(conn, 1<<20)
		if err != nil || m.Kind != "refuse" || !strings.Contains(m.Text, tt.want) || strings.Contains(m.Text, "secret") {
			t.Errorf("%s: answered %+v, %v; want to be refused: %s", tt.hello, m, err, tt.want)
		}
	}
	start(all[2])
	var there []*comm.Session
	for range all {
		if s := <-sessions; s != nil {
			there = append(there, s)
		}
	}
	closeAll(t, there)
}

// A second process with a number that is taken hears who has it.
func TestDuplicateRank(t *testing.T) {
	all := places(t, 3)
	first := dialAs(t, all[0], `{"Protocol":1,"Token":"secret","Rank":1,"World":3,"PID":7,"Host":"near"}`)
	if m, err := comm.ReadFrame(first, 1<<20); err != nil || m.Kind != "waiting" {
		t.Fatalf("the first was answered %+v, %v", m, err)
	}
	_, err := comm.Connect(t.Context(), all[1])
	if err == nil || !strings.Contains(err.Error(), "rank 1 (process 7 on near) is there already, and now comes rank 1 (process ") {
		t.Errorf("%v; want a refusal that names both", err)
	}
}

// Ranks that can't share memory are named.
func TestRanksOfOtherHosts(t *testing.T) {
	all := places(t, 2)
	conn := dialAs(t, all[0], `{"Protocol":1,"Token":"secret","Rank":1,"World":2,"PID":7,"Host":"far","Boot":"another","Namespace":"another"}`)
	if m, err := comm.ReadFrame(conn, 1<<20); err != nil || m.Kind != "ready" {
		t.Fatalf("answered %+v, %v", m, err)
	}
	if err := comm.WriteFrame(conn, &comm.Message{Kind: "join", Call: 1}); err != nil {
		t.Fatal(err)
	}
	m, err := comm.ReadFrame(conn, 1<<20)
	if err != nil || m.Kind != "fail" || m.Why == nil || !strings.Contains(m.Why.Remote.Text, "rank 1 (process 7 on far)") || !strings.Contains(m.Why.Remote.Text, "NCCL") {
		t.Errorf("answered %+v, %v; want an error that names rank 1's host and NCCL", m, err)
	}
}

// dialAs starts rank 0 of a job, which makes one group, and connects to it as another process, which ends before the test does.
func dialAs(t *testing.T, zero *job.Place, who string) net.Conn {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := comm.Connect(t.Context(), zero)
		if err != nil {
			return // the other end has left
		}
		if _, err := s.NewGroup(t.Context(), nil); err == nil {
			t.Error("a group without the others")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	conn := dial(t, zero)
	t.Cleanup(func() {
		_ = conn.Close() // so that rank 0 ends
		<-done
	})
	if err := comm.WriteFrame(conn, hello(t, fmt.Sprintf(`{"Kind":"hello","Hello":%s}`, who))); err != nil {
		t.Fatal(err)
	}
	return conn
}
