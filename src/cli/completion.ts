import type { Command, OptionSpec } from "./command.ts";

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** Placeholders of the help that stand for files. */
const FILE_VALUES = new Set(["FILE", "DIR"]);

/** A script that completes the commands and options of the table in a shell. */
export function completionScript(shell: Shell, commands: readonly Command[]): string {
  switch (shell) {
    case "bash":
      return bash(commands);
    case "zsh":
      return zsh(commands);
    case "fish":
      return fish(commands);
  }
}

interface Tree {
  /** first words, with their summaries */
  readonly firsts: readonly (readonly [string, string])[];
  /** second words of the first words that have any */
  readonly groups: ReadonlyMap<string, readonly (readonly [string, string])[]>;
}

function treeOf(commands: readonly Command[]): Tree {
  const firsts = new Map<string, string>();
  const groups = new Map<string, [string, string][]>();
  for (const { name, summary } of commands) {
    const [first = "", second] = name.split(" ");
    if (second === undefined) firsts.set(first, summary);
    else {
      const group = groups.get(first) ?? [];
      group.push([second, summary]);
      groups.set(first, group);
    }
  }
  for (const [first, group] of groups) {
    // `receipt` is a command and a group.
    if (!firsts.has(first)) firsts.set(first, group.map(([second]) => second).join(", "));
  }
  return { firsts: [...firsts], groups };
}

/** The first two words of a command, and what may follow them: the third word, or a value of its argument. */
function wordsOf({ name, choices }: Command): { readonly path: string; readonly next: readonly string[] } {
  const [first = "", second, ...rest] = name.split(" ");
  return { path: second === undefined ? first : `${first} ${second}`, next: [...rest, ...choices] };
}

const optionsOf = ({ options }: Command): [string, OptionSpec][] => Object.entries(options);
const words = (pairs: readonly (readonly [string, string])[]): string => pairs.map(([word]) => word).join(" ");
const takesFile = ({ value }: OptionSpec): boolean => FILE_VALUES.has(value ?? "");

/** Values of options by their spelling; an option of one name means the same in all commands. */
function valuesOf(commands: readonly Command[]): { readonly files: string[]; readonly choices: Map<string, string[]> } {
  const files = new Set<string>();
  const choices = new Map<string, string[]>();
  for (const [name, spec] of commands.flatMap(optionsOf)) {
    const spellings = [`--${name}`, ...(spec.short === undefined ? [] : [`-${spec.short}`])];
    if (takesFile(spec)) for (const spelling of spellings) files.add(spelling);
    if (spec.choices !== undefined) choices.set(`--${name}`, [...spec.choices]);
  }
  return { files: [...files], choices };
}

function bash(commands: readonly Command[]): string {
  const { firsts, groups } = treeOf(commands);
  const { files, choices } = valuesOf(commands);
  const choiceCases = [...choices].map(([option, values]) => `\t${option}) words="${values.join(" ")}" ;;`);
  const groupCases = [...groups].map(([first, seconds]) => `\t${first}) words="${words(seconds)}" ;;`);
  const optionCases = commands.map((each) => {
    const flags = optionsOf(each).map(([name]) => `--${name}`);
    const { path, next } = wordsOf(each);
    const pattern = path.includes(" ") ? `"${path}"` : `"${path} "*`;
    return `\t${pattern}) options="${[...next, ...flags].join(" ")}" ;;`;
  });
  return `# bash completion for coppice
_coppice() {
	local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD - 1]} words="" options="" at=1
	COMPREPLY=()
	case "$previous" in
	${files.join(" | ")})
		mapfile -t COMPREPLY < <(compgen -f -- "$current")
		compopt -o filenames 2>/dev/null
		return
		;;
${choiceCases.join("\n")}
	esac
	if [ -n "$words" ]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
		return
	fi
	if [ "\${COMP_WORDS[1]}" = help ]; then at=2; fi
	if [ "$COMP_CWORD" -le "$at" ]; then
		mapfile -t COMPREPLY < <(compgen -W "${words(firsts)} help" -- "$current")
		return
	fi
	case "\${COMP_WORDS[at]}" in
${groupCases.join("\n")}
	esac
	if [ "$COMP_CWORD" -eq $((at + 1)) ] && [ -n "$words" ] && [[ "$current" != -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
		return
	fi
	if [ "$at" -eq 2 ]; then return; fi
	case "\${COMP_WORDS[1]} \${COMP_WORDS[2]}" in
${optionCases.join("\n")}
	esac
	mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -F _coppice coppice
`;
}

/** A text within single quotes of zsh. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function zsh(commands: readonly Command[]): string {
  const { firsts, groups } = treeOf(commands);
  const described = (pairs: readonly (readonly [string, string])[]): string =>
    pairs.map(([word, what]) => quoted(`${word}:${what.replaceAll(":", "\\:")}`)).join(" ");
  const groupCases = [...groups].map(([first, pairs]) => `\t\t${first}) seconds=(${described(pairs)}) ;;`);
  const optionCases = commands.map((each) => {
    const specs = optionsOf(each).map(([name, spec]) => {
      const doc = spec.doc.replaceAll(/([\\:[\]])/g, "\\$1");
      const action = takesFile(spec) ? "_files" : spec.choices === undefined ? "" : `(${spec.choices.join(" ")})`;
      const isOptional = spec.isValueOptional === true;
      const value = spec.type === "boolean" ? "" : `${isOptional ? "::" : ":"}${spec.value ?? "value"}:${action}`;
      // The value is in the same word.
      const spelling = `--${name}${isOptional ? "=-" : ""}`;
      return quoted(`${spec.multiple === true ? "*" : ""}${spelling}[${doc}]${value}`);
    });
    const { path, next } = wordsOf(each);
    const pattern = path.includes(" ") ? `"${path}"` : `"${path} "*`;
    const argument = next.length === 0 ? "_files" : `(${next.join(" ")})`;
    return `\t${pattern}) _arguments ${specs.join(" ")} '*:argument:${argument}' ;;`;
  });
  return `#compdef coppice
_coppice() {
	local -a firsts seconds
	firsts=(${described([...firsts, ["help", "explain a command"]])})
	if [[ "$words[2]" == help ]] && (( CURRENT > 2 )); then
		shift words
		(( CURRENT -= 1 ))
	fi
	if (( CURRENT == 2 )); then
		_describe command firsts
		return
	fi
	if (( CURRENT == 3 )); then
		case "$words[2]" in
${groupCases.join("\n")}
		esac
		if (( $#seconds )) && [[ "$words[3]" != -* ]]; then
			_describe command seconds
			return
		fi
	fi
	case "$words[2] $words[3]" in
${optionCases.join("\n")}
	esac
}
_coppice "$@"
`;
}

function fish(commands: readonly Command[]): string {
  const { firsts, groups } = treeOf(commands);
  const lines = ["# fish completion for coppice", "complete -c coppice -f"];
  for (const [word, what] of [...firsts, ["help", "explain a command"]] as const) {
    lines.push(`complete -c coppice -n __fish_use_subcommand -a ${word} -d ${fishQuoted(what)}`);
  }
  for (const [first, pairs] of groups) {
    const none = `not __fish_seen_subcommand_from ${words(pairs)}`;
    for (const [word, what] of pairs) {
      const condition = fishQuoted(`__fish_seen_subcommand_from ${first}; and ${none}`);
      lines.push(`complete -c coppice -n ${condition} -a ${word} -d ${fishQuoted(what)}`);
    }
  }
  const helped = "__fish_seen_subcommand_from help; and test (count (commandline -opc)) -eq 2";
  lines.push(`complete -c coppice -n ${fishQuoted(helped)} -a ${fishQuoted(words(firsts))}`);
  for (const each of commands) {
    const { path, next } = wordsOf(each);
    const seen = path.split(" ").map((word) => `__fish_seen_subcommand_from ${word}`);
    const seconds = groups.get(path);
    if (seconds !== undefined) seen.push(`not __fish_seen_subcommand_from ${words(seconds)}`);
    for (const [name, spec] of optionsOf(each)) {
      const choices = spec.choices === undefined ? "" : ` -a ${fishQuoted(spec.choices.join(" "))}`;
      const needsValue = spec.type !== "boolean" && spec.isValueOptional !== true;
      const value = !needsValue ? "" : takesFile(spec) ? " -r -F" : ` -x${choices}`;
      const short = spec.short === undefined ? "" : ` -s ${spec.short}`;
      const option = `-l ${name}${short}${value} -d ${fishQuoted(spec.doc)}`;
      lines.push(`complete -c coppice -n ${fishQuoted(seen.join("; and "))} ${option}`);
    }
    if (next.length > 0) {
      lines.push(`complete -c coppice -n ${fishQuoted(seen.join("; and "))} -a ${fishQuoted(next.join(" "))}`);
    }
  }
  return `${lines.join("\n")}\n`;
}

/** fish knows only two escapes within single quotes. */
function fishQuoted(text: string): string {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
