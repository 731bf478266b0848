// Package repeat keeps a log readable while something stays broken: the same cause is
// logged when it first occurs, then at most once in a while with the number of times it was
// left out, and its end is logged once.
//
// The caller chooses what "the same" is by a key. The key is not logged. Keys that are not
// seen again are forgotten, so memory is bounded; nothing runs in the background.
package repeat
