// Package launcher runs a program as the workers of a job.
package launcher
