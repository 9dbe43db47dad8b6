/** Languages by file extension. The values are names of the worker's grammars. */
const BY_EXTENSION: ReadonlyMap<string, string> = new Map(
  Object.entries({
    bash: "sh bash zsh ksh ash bashrc profile",
    c: "c h",
    cpp: "cc cpp cxx hpp hh hxx ino",
    css: "css scss less",
    diff: "diff patch",
    go: "go",
    ini: "ini conf cfg toml service socket timer target mount properties desktop env editorconfig",
    java: "java kt gradle",
    javascript: "js mjs cjs jsx",
    json: "json jsonc json5 webmanifest ipynb",
    lua: "lua",
    makefile: "mk mak",
    markdown: "md markdown",
    perl: "pl pm t",
    php: "php",
    python: "py pyi pyw",
    ruby: "rb gemspec rake",
    rust: "rs",
    sql: "sql",
    typescript: "ts mts cts tsx",
    xml: "xml html htm xhtml svg xsl xsd plist rss atom",
    yaml: "yaml yml",
  }).flatMap(([language, ends]) => ends.split(" ").map((end) => [end, language] as const)),
);

/** Languages by whole names, in lower case. */
const BY_NAME: ReadonlyMap<string, string> = new Map(
  Object.entries({
    dockerfile: "dockerfile",
    containerfile: "dockerfile",
    makefile: "makefile",
    gnumakefile: "makefile",
    gemfile: "ruby",
    rakefile: "ruby",
    "nginx.conf": "nginx",
    ".bashrc": "bash",
    ".bash_profile": "bash",
    ".bash_logout": "bash",
    ".profile": "bash",
    profile: "bash",
    ".gitconfig": "ini",
    ".npmrc": "ini",
    fstab: "bash",
    "os-release": "ini",
  }),
);

/** Languages by the program of the first line, without its version. */
const BY_PROGRAM: ReadonlyMap<string, string> = new Map(
  Object.entries({
    sh: "bash",
    bash: "bash",
    dash: "bash",
    ash: "bash",
    zsh: "bash",
    ksh: "bash",
    python: "python",
    node: "javascript",
    bun: "typescript",
    deno: "typescript",
    perl: "perl",
    ruby: "ruby",
    php: "php",
    lua: "lua",
    make: "makefile",
  }),
);

/** The language of a text by its name, otherwise by its first line; null if neither identifies it. */
export function languageOf(name: string, firstLine: string): string | null {
  const lower = name.toLowerCase();
  const byName = BY_NAME.get(lower) ?? (lower.startsWith("dockerfile.") ? "dockerfile" : undefined);
  if (byName !== undefined) return byName;
  const dot = lower.lastIndexOf(".");
  const byExtension = dot === -1 ? undefined : BY_EXTENSION.get(lower.slice(dot + 1));
  if (byExtension !== undefined) return byExtension;
  return programLanguage(firstLine) ?? (/^\s*<\?xml\b|^\s*<!doctype html/i.test(firstLine) ? "xml" : null);
}

/** `#!/usr/bin/env -S python3.11 -u` is python. */
function programLanguage(line: string): string | null {
  const words = /^#!\s*(.{1,256})/.exec(line)?.[1]?.split(/\s+/) ?? [];
  const named = words[0]?.endsWith("/env") ? words.slice(1).find((word) => !/^-|=/.test(word)) : words[0];
  const program =
    named
      ?.split("/")
      .at(-1)
      ?.replace(/[\d.]+$/, "") ?? "";
  return BY_PROGRAM.get(program) ?? null;
}
