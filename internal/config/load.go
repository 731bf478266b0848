package config

import (
	"strconv"
	"strings"
	"unicode"
)

// Overrides is what the command line says, and what the command cannot do without.
type Overrides struct {
	// File is the YAML file; FileGiven tells "" from not given.
	File      string
	FileGiven bool
	// Flags holds the flags that were given, by the path of their setting.
	Flags map[string]string
	Needs Needs
}

// Needs says which settings without a default a command must have.
type Needs struct {
	Source bool
	Kafka  bool
	Admin  bool
	// Look says that the command only looks: which settings have no effect with the others is
	// for those to judge that use them.
	Look bool
}

// Load reads every way in which settings are given and returns the value to work with. The
// error is of type Problems and lists everything that is wrong. environ has the form of
// os.Environ, readFile that of os.ReadFile.
func Load(args Overrides, environ []string, readFile func(string) ([]byte, error)) (Config, error) {
	return newLoader(environ, readFile).load(args)
}

func newLoader(environ []string, readFile func(string) ([]byte, error)) *loader {
	return &loader{
		env: parseEnviron(environ), readFile: once(readFile),
		given: map[string]given{}, bad: map[string]bool{}, used: map[string]bool{},
	}
}

func (l *loader) load(args Overrides) (Config, error) {
	if name, field, ok := l.fileName(args); ok {
		if name == "" {
			l.fileUnread = true
			l.add(&FieldError{Field: field, Value: Show(name), Problem: "is empty", Hint: "name a YAML file, or leave it out"})
		} else {
			l.file(name, field)
		}
	}
	l.noteUses(args)
	l.environ()
	for _, f := range Flags() {
		if text, ok := args.Flags[f.Path]; ok {
			s, _ := find(l.flagPath(f, text))
			l.giveText(s, text, "--"+f.Name)
		}
	}
	cfg := defaults()
	for _, s := range settings {
		if g, ok := l.given[s.path]; ok {
			l.apply(&cfg, s, g)
		}
	}
	l.look = args.Needs.Look
	l.check(&cfg, args.Needs)
	if len(l.problems) > 0 {
		l.problems.sort()
		return Config{}, l.problems
	}
	return cfg, nil
}

// once reads each file a single time: a pipe has nothing to say to a second reader.
func once(readFile func(string) ([]byte, error)) func(string) ([]byte, error) {
	type answer struct {
		data []byte
		err  error
	}
	read := map[string]answer{}
	return func(name string) ([]byte, error) {
		a, ok := read[name]
		if !ok {
			a.data, a.err = readFile(name)
			read[name] = a
		}
		return a.data, a.err
	}
}

// flagPath returns the setting that a flag stands for. The scheme of --source-url says
// which database is meant, and --mode goes with the database that was named.
func (l *loader) flagPath(f Flag, text string) string {
	switch f.Twin {
	case "source.mongo.url":
		s, _ := find(f.Path)
		v, bad := l.resolve(s, value{text: text})
		if scheme, _, ok := cutScheme(v.text); bad == nil && ok && isMongoScheme(scheme) {
			return f.Twin
		}
	case "source.mongo.mode":
		if l.isGiven("source.mongo.url") && !l.isGiven("source.postgres.url") {
			return f.Twin
		}
	}
	return f.Path
}

// loader gathers values and problems.
type loader struct {
	env      environment
	readFile func(string) ([]byte, error)

	given map[string]given // by path, the latest way wins
	bad   map[string]bool  // paths with a problem: what depends on them is not judged
	used  map[string]bool  // variables that a ${NAME} refers to

	look       bool // Needs.Look
	fileUnread bool // settings may be missing because their file was not read
	problems   Problems
}

func (l *loader) add(e *FieldError) { l.problems = append(l.problems, e) }

func (l *loader) fileName(args Overrides) (name, field string, ok bool) {
	if args.FileGiven {
		return args.File, "--config", true
	}
	name, ok = l.env[envFile]
	return name, envFile, ok
}

// noteUses remembers which variables some text refers to, so that one named FORWARDER_... by
// its user is not taken for a mistyped setting. The problems come up when values are applied.
func (l *loader) noteUses(args Overrides) {
	texts := make([]string, 0, len(l.given)+len(args.Flags)+len(settings))
	for _, g := range l.given {
		texts = append(append(texts, g.text), g.items...)
	}
	for _, text := range args.Flags {
		texts = append(texts, text)
	}
	for _, s := range settings {
		texts = append(texts, l.env[Variable(s.path)])
	}
	for _, text := range texts {
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, "${")
			if !ok {
				break
			}
			name, _, _ := strings.Cut(after, "}")
			l.used[name] = true
			rest = after
		}
	}
}

// apply expands, judges and stores the value that won.
func (l *loader) apply(cfg *Config, s setting, g given) {
	shown := l.shown(s, g)
	refuse := func(v *verdict) {
		l.bad[s.path] = true
		l.add(&FieldError{Field: s.path, Origin: g.origin, Value: shown, Problem: v.problem, Hint: v.hint})
	}
	v, bad := l.resolve(s, g.value)
	if bad == nil {
		bad = s.set(cfg, v)
	}
	if bad != nil {
		refuse(bad)
	}
}

func (l *loader) resolve(s setting, raw value) (value, *verdict) {
	if s.kind == kindList {
		if len(raw.items) == 0 {
			return value{}, &verdict{"is empty", "write at least one item"}
		}
		items := make([]string, 0, len(raw.items))
		for _, item := range raw.items {
			text, bad := l.expand(strings.TrimSpace(item))
			if bad != nil {
				return value{}, bad
			}
			// A variable may bring a list of its own.
			for part := range strings.SplitSeq(text, ",") {
				if part = strings.TrimSpace(part); part == "" {
					return value{}, &verdict{"has an empty item", "write a value between the commas, or remove one"}
				}
				items = append(items, part)
			}
		}
		return value{items: items}, nil
	}
	text, bad := l.expand(raw.text)
	if bad == nil && s.secret {
		text, bad = l.dereference(text)
	}
	if bad == nil && strings.TrimSpace(text) == "" {
		bad = &verdict{"is empty", "give it a value, or leave it out"}
	}
	return value{text: text}, bad
}

// shown returns the value as it was written, as far as it may be shown. References are
// shown as they stand, not what they lead to.
func (l *loader) shown(s setting, g given) string {
	text := g.text
	if s.kind == kindList {
		text = strings.Join(g.items, ",")
	}
	switch {
	case text == "":
		return Show("")
	case !s.secret:
		return Show(text)
	case strings.HasPrefix(text, fileReference) || strings.HasPrefix(text, "${") && strings.IndexByte(text, '}') == len(text)-1:
		return Show(text)
	case s.url:
		return RedactURL(text)
	}
	return hidden
}

// Show quotes a text on one line, and hides it where it may carry a login: a URL or a
// connection string that was put in the wrong place.
func Show(text string) string {
	if strings.ContainsAny(text, "@=") || strings.Contains(text, "://") || strings.HasPrefix(text, "postgres") || strings.HasPrefix(text, "mongodb") {
		return hidden
	}
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "..."
	}
	return strconv.Quote(text)
}

// showName returns a name that is not a setting. It is cut where it stops looking like one:
// "password:secret" without a space is a name to YAML.
func showName(name string) string {
	end := strings.IndexFunc(name, func(r rune) bool {
		return r != '.' && r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	switch {
	case name == "":
		return "(a name of no characters)"
	case end < 0:
		return name
	}
	return name[:end] + "..."
}
