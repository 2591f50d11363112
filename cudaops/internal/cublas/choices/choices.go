// Package choices measures which of a library's algorithms is the fastest for an operation, and remembers it on disk.
//
// [Fastest] chooses, by what [Measure] says of each candidate on the card. A [Store] belongs to one library: its keys say the operation, the card
// and the library's version, its values what the library needs to do it the same way again, so that one run's bits are the next one's. What
// cannot be remembered is not to be chosen by measuring, because the next run might choose otherwise: [cache.Store.Ready] says so.
package choices

import "github.com/tandem-train/tandem/cudaops/internal/cache"

// Store is a library's choices.
type Store = cache.Store

// Open returns a library's store.
func Open(library string) *Store {
	return cache.Open("algorithms/"+library, "the fastest algorithms are not looked for, because they cannot be remembered")
}
