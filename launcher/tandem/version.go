package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
)

func versionCommand() command {
	return command{
		name:  "version",
		about: "print the version of this command",
		intro: "Prints the version of the module, the commit, and the version of Go that built this command.",
		flags: func() *flagSet { return newFlagSet("version") },
		run: func(_ context.Context, args []string, stdout, _ io.Writer) error {
			fs := newFlagSet("version")
			if err := fs.parse(args, os.LookupEnv); err != nil {
				return err
			}
			if err := fs.noArguments(); err != nil {
				return err
			}
			info, _ := debug.ReadBuildInfo()
			_, err := fmt.Fprintln(stdout, version(info))
			return err
		},
	}
}

// version says what was built: nil is a binary that does not tell.
func version(info *debug.BuildInfo) string {
	module, commit := "unknown version", "unknown commit"
	if info != nil {
		if v := info.Main.Version; v != "" {
			module = v
		}
		changed := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				commit = "commit " + s.Value
			case "vcs.modified":
				changed = s.Value == "true"
			}
		}
		if changed {
			commit += " and changes"
		}
	}
	return fmt.Sprintf("tandem %s (%s), %s, %s/%s", module, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
