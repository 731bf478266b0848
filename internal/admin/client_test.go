package admin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/admin"
)

func lane(n uint16) *uint16 { return &n }

func TestClientReadsWhatTheServerParks(t *testing.T) {
	st := &status{parked: []admin.Parked{
		{Part: admin.PartKey, ID: "7", Topic: "orders", Key: admin.Key("kunde-ü"), Reason: "too large", Attempts: 3, Since: moment, NextRetry: moment.Add(time.Minute)},
		{Part: admin.PartKey, ID: "9", Topic: "orders", Key: admin.Key{0xff, 0x00}, Reason: "malformed headers", Attempts: 1, Since: moment},
		{Part: admin.PartKey, ID: "10", Topic: "orders", Key: admin.Key{}, Reason: "too large", Attempts: 1, Since: moment},
		{Part: admin.PartTopic, Topic: "nowhere", Reason: "unknown topic", Attempts: 12, Since: moment},
		{Part: admin.PartLane, Lane: lane(0), Reason: "queue is full", Since: moment},
		{Part: admin.PartRow, ID: "11", Topic: "orders", Reason: "illegal topic name", Attempts: 1, Since: moment},
	}}
	client, err := admin.NewClient(start(t, st, nil).Addr())
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Parked(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, st.parked) {
		t.Errorf("got  %#v\nwant %#v", got, st.parked)
	}
	n, err := client.RetryParked(t.Context())
	if err != nil || n != len(st.parked) || st.retried() != 1 {
		t.Errorf("retry: got %d, %v, %d retries", n, err, st.retried())
	}
}

func TestNothingParkedIsAnEmptyList(t *testing.T) {
	addr := start(t, &status{}, nil).Addr()
	if got := ask(t, "GET", "http://"+addr+"/parked"); compact(t, got.body) != `{"parked":[]}` {
		t.Errorf("got %q", got.body)
	}
}

func TestClientErrorsNameTheCause(t *testing.T) {
	gone := start(t, &status{}, nil)
	if err := gone.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, addr, want string
		is               error
	}{
		{"nobody listens", gone.Addr(), "refused", admin.ErrUnreachable},
		{"a proxy", foreign(t, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no upstream", http.StatusBadGateway)
		}), "502 Bad Gateway: no upstream", nil},
		{"another program", foreign(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<html>"))
		}), "is that a forwarder?", nil},
		{"another program, escapes", foreign(t, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "\x1b[2Jno\nmore", http.StatusTeapot)
		}), `418 I'm a teapot: "\x1b[2Jno"`, nil},
		{"a redirect", foreign(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}), "302 Found", nil},
	} {
		client, err := admin.NewClient(c.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Parked(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.addr) {
			t.Errorf("%s: got %v, want %q and the address", c.name, err, c.want)
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.is)
		}
	}
}

func TestClientRefusesAddressesThatNobodyCanDial(t *testing.T) {
	for _, listen := range []string{"", "localhost", "127.0.0.1:0", "127.0.0.1:"} {
		if _, err := admin.NewClient(listen); err == nil {
			t.Errorf("%q was taken", listen)
		}
	}
}

func TestKeyJSON(t *testing.T) {
	for _, c := range []struct {
		key  admin.Key
		want string
	}{
		{nil, `null`},
		{admin.Key{}, `""`},
		{admin.Key("a"), `"a"`},
		{admin.Key(`{"base64":"x"}`), `"{\"base64\":\"x\"}"`},
		{admin.Key{0xc3}, `{"base64":"ww=="}`},
	} {
		data, err := json.Marshal(c.key)
		if err != nil || string(data) != c.want {
			t.Errorf("%x: got %s, %v, want %s", []byte(c.key), data, err, c.want)
		}
		var back admin.Key
		if err := json.Unmarshal(data, &back); err != nil || !bytes.Equal(back, c.key) || (back == nil) != (c.key == nil) {
			t.Errorf("%s came back as %#v, %v", data, back, err)
		}
	}
	for _, bad := range []string{`7`, `{"base64":"*"}`, `{"base64":7}`} {
		var key admin.Key
		if err := json.Unmarshal([]byte(bad), &key); err == nil {
			t.Errorf("%s was taken as %x", bad, []byte(key))
		}
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	err := admin.WriteTable(&out, []admin.Parked{
		{Part: admin.PartKey, ID: "7", Topic: "orders", Key: admin.Key("a\x1b[2J"), Reason: "1,200,000 bytes are more than the topic's 1,048,588", Attempts: 3, Since: moment.Add(-95 * time.Second), NextRetry: moment.Add(30 * time.Second)},
		{Part: admin.PartKey, ID: "8", Topic: "orders", Key: admin.Key{0xff, 0}, Reason: "malformed headers", Attempts: 1, Since: moment.Add(-26 * time.Hour), NextRetry: moment},
		{Part: admin.PartTopic, Topic: "nowhere", Reason: "unknown topic", Attempts: 12, Since: moment.Add(-150 * time.Minute)},
		{Part: admin.PartLane, Lane: lane(12), Key: nil, Reason: "queue is full", Since: moment},
	}, moment)
	if err != nil {
		t.Fatal(err)
	}
	want := `PART     ID  TOPIC    KEY         ATTEMPTS  WAITING  NEXT RETRY  REASON
key      7   orders   "a\x1b[2J"  3         1m35s    in 30s      1,200,000 bytes are more than the topic's 1,048,588
key      8   orders   0xff00      1         1d2h     now         malformed headers
topic    -   nowhere  -           12        2h30m    under way   unknown topic
lane 12  -   -        -           0         0s       under way   queue is full
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := admin.WriteTable(&out, nil, moment); err != nil || out.String() != "nothing waits\n" {
		t.Errorf("empty: got %q, %v", out.String(), err)
	}
	if err := admin.WriteTable(broken{}, make([]admin.Parked, 1), moment); !errors.Is(err, errBroken) {
		t.Errorf("a closed output: got %v", err)
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }
