package admin

import "testing"

func TestDialAddr(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:8470":         "127.0.0.1:8470",
		"forwarder.example:8470": "forwarder.example:8470",
		"[::1]:8470":             "[::1]:8470",
		// A listener on every interface is reached over loopback.
		":8470":        "127.0.0.1:8470",
		"0.0.0.0:8470": "127.0.0.1:8470",
		"[::]:8470":    "[::1]:8470",
	} {
		if got, err := dialAddr(listen); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", listen, got, err, want)
		}
	}
}
