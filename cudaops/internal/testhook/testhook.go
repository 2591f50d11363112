// Package testhook lets package cudaopstest reach into package cudaops.
package testhook

// Reset makes cudaops forget its cards, so that the next call reads the
// environment again. Package cudaops sets it.
var Reset func()
