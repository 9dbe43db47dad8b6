import type { Command, OptionSpec } from "./command.ts";

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** Values that are files, by what stands for them in the help. */
const FILE_VALUES = new Set(["FILE", "DIR"]);

/** A script that completes commands and options in a shell, made of the table of commands. */
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
  /** first words, with what they do */
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
  for (const [first, group] of groups) firsts.set(first, group.map(([second]) => second).join(", "));
  return { firsts: [...firsts], groups };
}

const optionsOf = ({ options }: Command): [string, OptionSpec][] => Object.entries(options);
const words = (pairs: readonly (readonly [string, string])[]): string => pairs.map(([word]) => word).join(" ");
const takesFile = ({ value }: OptionSpec): boolean => FILE_VALUES.has(value ?? "");

function bash(commands: readonly Command[]): string {
  const { firsts, groups } = treeOf(commands);
  const files = new Set(
    commands.flatMap((each) =>
      optionsOf(each)
        .filter(([, spec]) => takesFile(spec))
        .map(([name]) => `--${name}`),
    ),
  );
  const groupCases = [...groups].map(([first, seconds]) => `\t${first}) words="${words(seconds)}" ;;`);
  const optionCases = commands.map((each) => {
    const flags = optionsOf(each).map(([name]) => `--${name}`);
    const pattern = each.name.includes(" ") ? `"${each.name}"` : `"${each.name} "*`;
    return `\t${pattern}) options="${flags.join(" ")}" ;;`;
  });
  return `# bash completion for coppice
_coppice() {
	local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD - 1]} words="" options=""
	COMPREPLY=()
	case "$previous" in
	${[...files].join(" | ")})
		mapfile -t COMPREPLY < <(compgen -f -- "$current")
		compopt -o filenames 2>/dev/null
		return
		;;
	esac
	if [ "$COMP_CWORD" -eq 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W "${words(firsts)} help" -- "$current")
		return
	fi
	case "\${COMP_WORDS[1]}" in
${groupCases.join("\n")}
	esac
	if [ "$COMP_CWORD" -eq 2 ] && [ -n "$words" ]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
		return
	fi
	case "\${COMP_WORDS[1]} \${COMP_WORDS[2]}" in
${optionCases.join("\n")}
	esac
	mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -F _coppice coppice
`;
}

/** A text within single quotes, as all three shells take it. */
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
      const value = spec.type === "boolean" ? "" : `:${spec.value ?? "value"}:${takesFile(spec) ? "_files" : ""}`;
      return quoted(`${spec.multiple === true ? "*" : ""}--${name}[${doc}]${value}`);
    });
    const pattern = each.name.includes(" ") ? `"${each.name}"` : `"${each.name} "*`;
    return `\t${pattern}) _arguments ${specs.join(" ")} '*:argument:_files' ;;`;
  });
  return `#compdef coppice
_coppice() {
	local -a firsts seconds
	firsts=(${described(firsts)})
	if (( CURRENT == 2 )); then
		_describe command firsts
		return
	fi
	if (( CURRENT == 3 )); then
		case "$words[2]" in
${groupCases.join("\n")}
		esac
		if (( $#seconds )); then
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
  for (const [word, what] of firsts) {
    lines.push(`complete -c coppice -n __fish_use_subcommand -a ${word} -d ${fishQuoted(what)}`);
  }
  for (const [first, pairs] of groups) {
    const none = `not __fish_seen_subcommand_from ${words(pairs)}`;
    for (const [word, what] of pairs) {
      const condition = fishQuoted(`__fish_seen_subcommand_from ${first}; and ${none}`);
      lines.push(`complete -c coppice -n ${condition} -a ${word} -d ${fishQuoted(what)}`);
    }
  }
  for (const each of commands) {
    const seen = each.name.split(" ").map((word) => `__fish_seen_subcommand_from ${word}`);
    for (const [name, spec] of optionsOf(each)) {
      const value = spec.type === "boolean" ? "" : takesFile(spec) ? " -r -F" : " -x";
      lines.push(
        `complete -c coppice -n ${fishQuoted(seen.join("; and "))} -l ${name}${value} -d ${fishQuoted(spec.doc)}`,
      );
    }
  }
  return `${lines.join("\n")}\n`;
}

/** fish knows only two escapes within single quotes. */
function fishQuoted(text: string): string {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
