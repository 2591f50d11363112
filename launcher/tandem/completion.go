package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// shells are those that completion is written for.
var shells = []string{"bash", "zsh", "fish"}

func completionCommand() command {
	return command{
		name:  "completion",
		about: "print a script that lets bash, zsh or fish complete command lines",
		usage: "bash|zsh|fish",
		intro: "Prints a script that lets a shell complete commands and flags of tandem.",
		examples: `  source <(tandem completion bash)
      in ~/.bashrc
  source <(tandem completion zsh)
      in ~/.zshrc, after compinit
  tandem completion fish > ~/.config/fish/completions/tandem.fish
`,
		flags: func() *flagSet { return newFlagSet("completion") },
		run:   printCompletion,
	}
}

// printCompletion is tandem completion.
func printCompletion(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := newFlagSet("completion")
	if err := fs.parse(args, os.LookupEnv); err != nil {
		return err
	}
	if fs.NArg() != 1 || !slices.Contains(shells, fs.Arg(0)) {
		return usagef("completion: name one shell: tandem completion %s", strings.Join(shells, "|"))
	}
	var script strings.Builder
	switch fs.Arg(0) {
	case "bash":
		bashCompletion(&script)
	case "zsh":
		zshCompletion(&script)
	case "fish":
		fishCompletion(&script)
	}
	_, err := io.WriteString(stdout, script.String())
	return err
}

// flagWords are a command's flags as they are typed, those that take a value apart.
func flagWords(c command) (all, valued []string) {
	c.flags().VisitAll(func(f *pflag.Flag) {
		words := []string{"--" + f.Name}
		if f.Shorthand != "" {
			words = append(words, "-"+f.Shorthand)
		}
		all = append(all, words...)
		if f.NoOptDefVal == "" {
			valued = append(valued, words...)
		}
	})
	return append(all, "--help"), valued
}

// arguments are what a command takes where it takes one of a few words.
func arguments(c command) []string {
	if c.name == "completion" {
		return shells
	}
	return nil
}

// bashCompletion completes the command, then its flags up to the first argument, which for run is a program: from there on, files.
func bashCompletion(w io.Writer) {
	names := []string{"help"}
	for _, c := range commands() {
		names = append(names, c.name)
	}
	fmt.Fprintf(w, `# Completion of tandem for bash.
_tandem() {
	local word=${COMP_WORDS[COMP_CWORD]} flags= valued= args= i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W %q -- "$word"))
		return
	fi
	case ${COMP_WORDS[1]} in
`, strings.Join(names, " "))
	for _, c := range commands() {
		all, valued := flagWords(c)
		fmt.Fprintf(w, "\t%s) flags=%q valued=%q args=%q ;;\n", c.name, strings.Join(all, " "), strings.Join(valued, " "), strings.Join(arguments(c), " "))
	}
	fmt.Fprintf(w, "\thelp) args=%q ;;\n", strings.Join(names[1:], " "))
	fmt.Fprint(w, `	esac
	for ((i = 2; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-*=*) ;;
		-*) [[ " $valued " == *" ${COMP_WORDS[i]} "* ]] && ((++i)) ;;
		*) break ;;
		esac
	done
	if ((i == COMP_CWORD)) && [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$word"))
	elif ((i == COMP_CWORD)) && [[ $args ]]; then
		COMPREPLY=($(compgen -W "$args" -- "$word"))
	else
		COMPREPLY=($(compgen -f -- "$word"))
	fi
}
complete -o filenames -F _tandem tandem
`)
}

func zshCompletion(w io.Writer) {
	fmt.Fprint(w, `#compdef tandem
# Completion of tandem for zsh.
_tandem() {
	local -a names
	names=(
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "\t\t%s\n", quote(c.name+":"+c.about))
	}
	fmt.Fprint(w, `		'help:show the help of a command'
	)
	if ((CURRENT == 2)); then
		_describe command names
		return
	fi
	local name=$words[2]
	shift words
	((CURRENT--))
	case $name in
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "\t%s)\n\t\t_arguments -S", c.name)
		c.flags().VisitAll(func(f *pflag.Flag) {
			kind, usage := pflag.UnquoteUsage(f)
			spec := "[" + strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`).Replace(firstWords(usage)) + "]"
			if f.NoOptDefVal == "" {
				spec += ":" + strings.ReplaceAll(kind, ":", `\:`) + ":_files"
			}
			fmt.Fprintf(w, " \\\n\t\t\t%s", quote("--"+f.Name+spec))
			if f.Shorthand != "" {
				fmt.Fprintf(w, " \\\n\t\t\t%s", quote("-"+f.Shorthand+spec))
			}
		})
		last := "--help[show help]"
		switch words := arguments(c); {
		case words != nil:
			last = "1:argument:(" + strings.Join(words, " ") + ")"
		case c.takesProgram:
			last = "*::program:_normal"
		}
		fmt.Fprintf(w, " \\\n\t\t\t%s\n\t\t;;\n", quote(last))
	}
	fmt.Fprint(w, `	help) _describe command names ;;
	esac
}
if [[ $funcstack[1] == _tandem ]]; then
	_tandem "$@"
else
	compdef _tandem tandem
fi
`)
}

func fishCompletion(w io.Writer) {
	fmt.Fprint(w, "# Completion of tandem for fish.\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "complete -c tandem -n __fish_use_subcommand -f -a %s -d %s\n", c.name, quote(c.about))
	}
	fmt.Fprintf(w, "complete -c tandem -n __fish_use_subcommand -f -a help -d %s\n", quote("show the help of a command"))
	for _, c := range commands() {
		when := quote("__fish_seen_subcommand_from " + c.name)
		c.flags().VisitAll(func(f *pflag.Flag) {
			fmt.Fprintf(w, "complete -c tandem -n %s -l %s", when, f.Name)
			if f.Shorthand != "" {
				fmt.Fprintf(w, " -s %s", f.Shorthand)
			}
			if f.NoOptDefVal == "" {
				fmt.Fprint(w, " -r")
			}
			_, usage := pflag.UnquoteUsage(f)
			fmt.Fprintf(w, " -d %s\n", quote(firstWords(usage)))
		})
		if words := arguments(c); words != nil {
			fmt.Fprintf(w, "complete -c tandem -n %s -f -a %s\n", when, quote(strings.Join(words, " ")))
		}
	}
}

// firstWords is what a flag is for, without the details: up to the first semicolon, colon or parenthesis.
func firstWords(usage string) string {
	if i := strings.IndexAny(usage, ";:("); i >= 0 {
		usage = usage[:i]
	}
	return strings.TrimSpace(usage)
}

// quote writes a word for a shell: in single quotes, which all three read alike but for a quote within.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
