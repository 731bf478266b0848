// Package checkpoint says up to where a log may be confirmed when what it brought is finished in
// any order: up to the end of the contiguous prefix, and no further. It knows no log, imports
// nothing of ours and has no lock or clock.
package checkpoint
