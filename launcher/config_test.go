package launcher

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	several := func(c *Config) { c.Nodes, c.Addr, c.Port, c.RunID = 2, "node0", 29500, "run" }
	for name, tc := range map[string]struct {
		change      func(*Config)
		field, want string
	}{
		"fine":                  {func(*Config) {}, "", ""},
		"fine on several nodes": {several, "", ""},
		"no program":            {func(c *Config) { c.Program = "" }, "Program", "name the file"},
		"no workers":            {func(c *Config) { c.Workers = nil }, "Workers", "at least one"},
		"nodes":                 {func(c *Config) { c.Nodes = -1 }, "Nodes", "-1"},
		"node":                  {func(c *Config) { c.Node = 1 }, "Node", "from 0 to 0"},
		"node of several":       {func(c *Config) { several(c); c.Node = 2 }, "Node", "from 0 to 1"},
		"port":                  {func(c *Config) { c.Port = 65536 }, "Port", "65536"},
		"port of several":       {func(c *Config) { several(c); c.Port = 0 }, "Port", "same port"},
		"address of several":    {func(c *Config) { several(c); c.Addr = "" }, "Addr", "node 0"},
		"name of several":       {func(c *Config) { several(c); c.RunID = "" }, "RunID", "the same"},
		"name is a path":        {func(c *Config) { c.RunID = "../x" }, "RunID", "folder"},
		"name is dots":          {func(c *Config) { c.RunID = ".." }, "RunID", "folder"},
		"role":                  {func(c *Config) { c.Role = "a\x00" }, "Role", "zero byte"},
		"restarts":              {func(c *Config) { c.MaxRestarts = -1 }, "MaxRestarts", "negative"},
		"restarts of several":   {func(c *Config) { several(c); c.MaxRestarts = 1 }, "MaxRestarts", "several nodes"},
		"interval":              {func(c *Config) { c.MonitorInterval = -time.Second }, "MonitorInterval", "negative"},
		"grace":                 {func(c *Config) { c.Grace = -time.Second }, "Grace", "negative"},
		"worker's environment":  {func(c *Config) { c.Workers[1].Env = []string{"=x"} }, "Workers", "local rank 1"},
		"worker's processors":   {func(c *Config) { c.Workers[1].CPUs = []int{0, -1} }, "Workers", "-1"},
		"redirects":             {func(c *Config) { c.LogDir, c.Redirects.All = "logs", 4 }, "Redirects", "from 0 to 3"},
		"redirects of nobody":   {func(c *Config) { c.LogDir, c.Redirects.Ranks = "logs", map[int]Streams{2: Both} }, "Redirects", "local rank 2"},
		"redirects to nowhere":  {func(c *Config) { c.Redirects.All = Stdout }, "Redirects", "LogDir"},
		"tee":                   {func(c *Config) { c.LogDir, c.Tee.Ranks = "logs", map[int]Streams{0: -1} }, "Tee", "from 0 to 3"},
		"tee to nowhere":        {func(c *Config) { c.Tee.Ranks = map[int]Streams{0: Both} }, "Tee", "LogDir"},
		"filter":                {func(c *Config) { c.Filter = []int{0, 2} }, "Filter", "local rank 2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Program: "train", Workers: make([]Worker, 2)}
			tc.change(&c)
			err := c.Validate()
			if tc.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var wrong *ConfigError
			if !errors.As(err, &wrong) || wrong.Field != tc.field || !strings.Contains(wrong.Why, tc.want) {
				t.Errorf("%v, want field %s and %q", err, tc.field, tc.want)
			}
		})
	}
}
