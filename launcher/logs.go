package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// claimLogs makes the folder of a job's log files. It is named after the job; if that is taken, by a job of the same name before, a
// number is added. Launchers of several nodes may write to the same disk, so that each has a folder in it.
func claimLogs(cfg *Config) (string, error) {
	dir := filepath.Join(cfg.LogDir, cfg.RunID)
	if cfg.Nodes > 1 {
		dir = filepath.Join(dir, "node_"+strconv.Itoa(cfg.Node))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", fmt.Errorf("launcher: log folder: %w", err)
	}
	for i, name := 2, dir; ; i++ {
		err := os.Mkdir(name, 0o777)
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("launcher: log folder: %w", err)
		}
		name = dir + "_" + strconv.Itoa(i)
	}
}

// logFiles makes the folder of a worker's log files and names them: "" for a stream without one.
func (c *Config) logFiles(claimed string, attempt, local int) (out, err string, _ error) {
	files, _ := c.streams(local)
	if files == None {
		return "", "", nil
	}
	dir := filepath.Join(claimed, "attempt_"+strconv.Itoa(attempt), strconv.Itoa(local))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", "", fmt.Errorf("launcher: log folder: %w", err)
	}
	if files&Stdout != 0 {
		out = filepath.Join(dir, "stdout.log")
	}
	if files&Stderr != 0 {
		err = filepath.Join(dir, "stderr.log")
	}
	return out, err, nil
}
