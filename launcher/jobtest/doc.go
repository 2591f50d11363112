// Package jobtest holds the tests of whole jobs: tandem run, its workers as processes that train together, and everything that can
// happen to them. After each, nothing of the job runs, and the report says why it ended.
package jobtest
