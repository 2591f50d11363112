package backendtest

// HalfBits is how a number lies in memory as a half.
var HalfBits = halfBits
