// Package tools holds checks of the repository as a whole: which package may import which, and that the README's program is one
// that runs. It has tests only, and scripts for machines without Go (see `make gpu`). Nothing imports it.
package tools
