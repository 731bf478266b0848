package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"go.yaml.in/yaml/v4"
)

// given is a value with the place where it stands.
type given struct {
	value
	origin string
}

// file reads the YAML file. What cannot be a setting's value is a problem; the values of
// settings are judged later, since another way may still replace them.
// field is how the user named it.
func (l *loader) file(name, field string) {
	data, err := l.readFile(name)
	if err != nil {
		l.fileUnread = true
		l.add(&FieldError{Field: field, Value: Show(name), Problem: "cannot be read: " + cause(err),
			Hint: "name a YAML file that this user may read"})
		return
	}
	root, err := parseYAML(data)
	if err != nil {
		l.fileUnread = true
		l.add(&FieldError{Field: field, Value: Show(name), Origin: errorPlace(name, err), Problem: "is not valid YAML: " + yamlCause(err),
			Hint: "correct the line; text with special characters goes in quotes"})
		return
	}
	if root != nil {
		l.section("", root, name)
	}
}

// parseYAML returns the only document, or nil when there is nothing in it.
func parseYAML(data []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var doc, second yaml.Node
	if err := loader.Load(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := loader.Load(&second); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is a second document behind ---")
		}
		return nil, err
	}
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		return doc.Content[0], nil
	}
	return nil, nil
}

// section walks a mapping. path is "" at the top.
func (l *loader) section(path string, node *yaml.Node, file string) {
	node = resolve(node)
	if node.ShortTag() == "!!null" {
		return // a section whose lines are all commented out
	}
	if node.Kind != yaml.MappingNode {
		field := path
		if path == "" {
			field = "the file"
			l.fileUnread = true
		}
		l.add(&FieldError{Field: field, Origin: place(file, node), Problem: "is not a section of name: value lines",
			Hint: "it holds: " + strings.Join(children(path), ", ")})
		return
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, content := node.Content[i], resolve(node.Content[i+1])
		full := strings.TrimPrefix(path+"."+key.Value, ".")
		if key.Kind != yaml.ScalarNode || key.Value == "<<" {
			l.add(&FieldError{Field: strings.TrimPrefix(path+".<<", "."), Origin: place(file, key),
				Problem: "is not a plain name", Hint: "write name: value lines; merged and composed keys are not supported"})
			continue
		}
		if first, ok := seen[key.Value]; ok {
			l.add(&FieldError{Field: showName(full), Origin: place(file, key),
				Problem: fmt.Sprintf("is given twice, first on line %d", first.Line), Hint: "keep one of them"})
			continue
		}
		seen[key.Value] = key
		s, ok := find(full)
		switch {
		case strings.Contains(key.Value, "."):
			l.unknownKey(path, key.Value, place(file, key))
		case ok:
			l.fileValue(s, content, place(file, key))
		case isSection(full):
			l.section(full, content, file)
		default:
			l.unknownKey(path, key.Value, place(file, key))
		}
	}
}

// fileValue checks that a node has the setting's shape.
func (l *loader) fileValue(s setting, node *yaml.Node, origin string) {
	wrong := func(problem, hint string) {
		l.add(&FieldError{Field: s.path, Origin: origin, Problem: problem, Hint: hint})
		l.bad[s.path] = true
	}
	if node.Kind == yaml.SequenceNode && s.kind == kindList {
		items := make([]string, len(node.Content))
		for i, item := range node.Content {
			item = resolve(item)
			if item.Kind != yaml.ScalarNode || item.ShortTag() != "!!str" {
				wrong(fmt.Sprintf("has an item that is %s, not text (number %d)", nodeName(item), i+1), "write a list of texts, in quotes where needed")
				return
			}
			items[i] = item.Value
		}
		l.given[s.path] = given{value{items: items}, origin}
		return
	}
	tag := node.ShortTag()
	fits := node.Kind == yaml.ScalarNode && (tag == "!!str" ||
		s.kind == kindTruth && tag == "!!bool" ||
		s.kind == kindWord && (tag == "!!int" || tag == "!!float"))
	switch {
	case fits:
		l.giveText(s, node.Value, origin)
	case tag == "!!null":
		wrong("has no value", "give it one, or remove the line to use the default")
	case node.Kind != yaml.ScalarNode:
		wrong("is "+nodeName(node)+", not "+shapeName(s.kind), "write one "+shapeName(s.kind)+", in quotes where it has special characters")
	case s.kind == kindTruth:
		wrong("is "+nodeName(node)+", not true or false", "write true or false")
	default:
		wrong("is "+nodeName(node)+", not "+shapeName(s.kind), "write it in quotes if it is meant as text")
	}
}

// giveText records one text; for a list it holds the items between commas.
func (l *loader) giveText(s setting, text, origin string) {
	v := value{text: text}
	if s.kind == kindList && text != "" {
		v = value{items: strings.Split(text, ",")}
	}
	l.given[s.path] = given{v, origin}
}

// unknownKey reports a name that is not a setting. Its value is not shown: it may be a
// secret under a mistyped name.
func (l *loader) unknownKey(section, key, origin string) {
	full := strings.TrimPrefix(section+"."+key, ".")
	e := &FieldError{Field: showName(full), Origin: origin, Problem: "is not a setting"}
	defer l.add(e)
	if v := refusal(key); v != nil {
		e.Problem, e.Hint = v.problem, v.hint
		return
	}
	if _, ok := find(full); ok || isSection(full) {
		e.Hint = "write each part on a level of its own, " + strings.ReplaceAll(full, ".", ": ") + ": ..."
		return
	}
	if name := Nearest(key, children(section)); name != "" {
		e.Hint = "did you mean " + strings.TrimPrefix(section+"."+name, ".") + "?"
		return
	}
	for _, s := range settings {
		if strings.HasSuffix(s.path, "."+key) {
			e.Hint = "did you mean " + s.path + "?"
			return
		}
	}
	e.Hint = "here are allowed: " + strings.Join(children(section), ", ")
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func place(file string, n *yaml.Node) string { return fmt.Sprintf("%s:%d", file, n.Line) }

func nodeName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a section"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a truth value"
	case "!!timestamp":
		return "a date"
	case "!!null":
		return "empty"
	case "!!str":
		return "a text"
	}
	return "a tagged value"
}

func shapeName(k kind) string {
	switch k {
	case kindTruth:
		return "truth value"
	case kindList:
		return "list of texts"
	default:
		return "text"
	}
}

// yamlCause returns the parser's reason. The name of an anchor is left out: an unquoted
// password that begins with * reads as one.
func yamlCause(err error) string {
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		return err.Error()
	}
	if strings.Contains(load.Message, "anchor") {
		return "a value that begins with * is a reference to nothing"
	}
	return load.Message
}

func errorPlace(file string, err error) string {
	var load *yaml.LoadError
	if errors.As(err, &load) && load.Mark.Line > 0 {
		return fmt.Sprintf("%s:%d", file, load.Mark.Line)
	}
	return file
}

// cause returns why a file could not be read, without the name that the caller shows anyway.
func cause(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
