//go:build linux

package launcher

func launcherMain() int { return 0 }
