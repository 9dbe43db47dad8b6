import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { inCircles } from "./support/source/circles.ts";
import { FLOORS, MAY_IMPORT, MAY_IMPORT_WITHIN } from "./support/source/import-rules.ts";
import { importProblem, importsOf } from "./support/source/imports.ts";
import {
  everything,
  except,
  filesBelow,
  isTypeScript,
  places,
  source,
  written,
} from "./support/source/source-files.ts";
import { architecturePage } from "./support/source/source-tree.ts";
import { wordsToReplace } from "./support/source/words.ts";

const ROOT = resolve(import.meta.dir, "..");
const FILE_LINES_MAX = 400;
const LINE_COLUMNS_MAX = 160;
const FOLDER_FILES_MAX = 20;
const FUNCTION_LINES_MAX = 70;
/** Files whose length and width are bounded. */
const CODE = /\.(tsx?|css|c|h|sh)$/;

describe("imports", () => {
  test("go down only", () => {
    const problems = source.flatMap((file) =>
      importsOf(file.text).flatMap((entry) => {
        const problem = importProblem(file.path, entry);
        return problem === null ? [] : [`${file.path} imports ${entry.specifier}: ${problem}`];
      }),
    );
    expect(problems).toEqual([]);
  });

  test("the table names only what exists", () => {
    const inside = source.map(({ path }) => relative("src", path));
    const existing = new Set([
      "*",
      "package.json",
      "daemon",
      ...filesBelow("systemd"),
      ...inside,
      ...inside.flatMap((path) => [path.split("/")[0] ?? "", dirname(path)]),
    ]);
    const names = [...Object.keys(MAY_IMPORT), ...Object.values(MAY_IMPORT).flat()];
    expect(names.filter((name) => !existing.has(name) && !existing.has(`${name}.ts`))).toEqual([]);
    for (const [top, rules] of Object.entries(MAY_IMPORT_WITHIN)) {
      const parts = inside.flatMap((path) => (path.startsWith(`${top}/`) ? [path.split("/")[1] ?? ""] : []));
      expect(Object.keys(rules).sort()).toEqual([...new Set(parts)].filter((name) => !name.endsWith(".d.ts")).sort());
    }
  });

  test("the table of the source tree follows from the rules, and the page shows it: make test-table", () => {
    const floorOf = (name: string): number =>
      FLOORS.findIndex(({ names }) => names.some((room) => name === room || name.startsWith(`${room}/`)));
    const upwards = Object.entries(MAY_IMPORT).flatMap(([name, targets]) =>
      targets
        .filter((target) => target !== "*" && !/^(systemd|package\.json)/.test(target))
        .map((target) => (FLOORS.some(({ names }) => names.includes(`${target}.ts`)) ? `${target}.ts` : target))
        .filter((target) => floorOf(target) < floorOf(name))
        .map((target) => `${name} imports ${target}`),
    );
    expect(upwards).toEqual([]);
    expect(Object.keys(MAY_IMPORT).filter((name) => floorOf(name) < 0)).toEqual([]);
    const { is, shouldBe } = architecturePage();
    expect(is).toBe(shouldBe);
  });

  test("the check sees every kind of import", () => {
    const text = [
      'import { a } from "./a.ts";',
      'import type { B } from "./b.ts";',
      'import {\n  type C,\n  d,\n} from "./c.ts";',
      'export { e } from "./e.ts";',
      'import "./f.ts";',
      'const g = await import("./g.ts");',
    ].join("\n");
    expect(
      importsOf(text)
        .map(({ specifier }) => specifier)
        .sort(),
    ).toEqual(["./a.ts", "./b.ts", "./c.ts", "./e.ts", "./f.ts", "./g.ts"].sort());
    expect(importProblem("src/db/x.ts", { specifier: "../vm/vmm.ts", typeOnly: true })).not.toBeNull();
    expect(importProblem("src/domain/x.ts", { specifier: "node:fs", typeOnly: false })).not.toBeNull();
    expect(importProblem("src/cli/x.ts", { specifier: "../db/schema.ts", typeOnly: true })).not.toBeNull();
    expect(importProblem("src/cli/x.ts", { specifier: "../domain/ids", typeOnly: true })).not.toBeNull();
    expect(importProblem("src/client/x.ts", { specifier: "../api/app.ts", typeOnly: false })).not.toBeNull();
    expect(importProblem("src/vm/x.ts", { specifier: "../cgroup/stats.ts", typeOnly: false })).toBeNull();
    const view = { specifier: "../run/view.tsx", typeOnly: true };
    expect(importProblem("src/web/app/x.ts", view)).not.toBeNull();
    expect(importProblem("src/web/app/x.ts", { ...view, isDynamic: true })).toBeNull();
    expect(importProblem("src/web/parts/x.ts", { ...view, isDynamic: true })).not.toBeNull();
    expect(importProblem("src/web/run/x.ts", { specifier: "../parts/icon.tsx", typeOnly: false })).toBeNull();
    expect(importProblem("src/web/run/form/x.ts", { specifier: "../../image/link.ts", typeOnly: true })).not.toBeNull();
  });
  test("form no circle, types included", () => {
    const byPath = new Set(source.map(({ path }) => path));
    const imported = new Map(
      source.map(({ path, text }) => {
        const targets = importsOf(text).map(({ specifier }) => join(dirname(path), specifier));
        return [path, targets.filter((target) => byPath.has(target))] as const;
      }),
    );
    expect(inCircles(imported)).toEqual([]);
  });

  test("no folder has more files than one can take in", () => {
    const counts = new Map<string, number>();
    const code = everything.filter(({ path }) => /^(src|tests)\//.test(path) && CODE.test(path));
    for (const { path } of code) counts.set(dirname(path), (counts.get(dirname(path)) ?? 0) + 1);
    expect([...counts].filter(([, count]) => count > FOLDER_FILES_MAX)).toEqual([]);
  });
});

describe("includes", () => {
  /** A source file and its header are one module; `guest/` and `native/` stand behind platform.h. */
  const moduleOf = (path: string): string => path.replace(/\.[ch]$/, "");
  const c = everything.filter(({ path }) =>
    /^vm-assets\/agent\/(?:(?:emulation|files|network)\/)?\w+\.[ch]$/.test(path),
  );
  const included = new Map<string, Set<string>>();
  for (const { path, text } of c) {
    const targets = included.get(moduleOf(path)) ?? new Set();
    for (const [, name = ""] of text.matchAll(/^#include "(\S+)"$/gm)) targets.add(moduleOf(join(dirname(path), name)));
    targets.delete(moduleOf(path));
    included.set(moduleOf(path), targets);
  }

  test("of the agent form no circle", () => {
    expect(included.size).toBeGreaterThan(20);
    expect(inCircles(included)).toEqual([]);
  });
});

describe("exports", () => {
  test("are used by the product, not by tests alone", () => {
    // The client is a package of its own, and the protocol has numbers that only the agent's side uses.
    const forOthers = /^src\/client\/|^src\/vm\/agent\/protocol\.ts$/;
    const declared = /^export (?:async |abstract )*(?:function\*?|const|let|class|interface|type) (\w+)/gm;
    const uses = new Map<string, number>();
    // A name that only a comment mentions is not used.
    const code = source.map(({ path, text }) => ({
      path,
      text: text.replace(/\/\*[\s\S]*?\*\/|(?<=^|\s)\/\/.*$/gm, ""),
    }));
    for (const [word] of code.flatMap(({ text }) => [...text.matchAll(/[A-Za-z_]\w*/g)])) {
      uses.set(word, (uses.get(word) ?? 0) + 1);
    }
    const unused = code.flatMap(({ path, text }) =>
      [...text.matchAll(declared)]
        .filter(([, name = ""]) => uses.get(name) === 1)
        .map(([, name]) => `${path}: ${name}`),
    );
    expect(unused.filter((name) => !forOthers.test(name.replace(/: .*/, "")))).toEqual([]);
  });
});

describe("one place for each power", () => {
  test("programs are started in system/exec.ts", () => {
    const pattern = /\bBun\.spawn|node:child_process|\bBun\.\$|import \{[^}]*(?:\bspawn|\$)[^}]*\} from "bun"/;
    expect(places(except(source, "src/system/exec.ts"), pattern)).toEqual([]);
  });

  test("unit tests start no program, and listen nowhere", () => {
    const unit = everything.filter(({ path }) => path.startsWith("tests/unit/"));
    // The ring itself refuses programs that a test starts by a module of the source: tests/support/rings/unit-only.ts.
    expect(places(unit, /\bBun\.(?:spawn|serve|listen|udpSocket|\$)|node:child_process|\bcreateServer\b/)).toEqual([]);
  });

  test("tests wait in tests/support/waiting.ts", () => {
    const tests = everything.filter(({ path }) => path.startsWith("tests/") && path.endsWith(".ts"));
    // The timeout of a socket is none of these: it waits for what comes.
    const pattern = /\bBun\.sleep|(?<![.\w])setTimeout\(|\bsetTimeout\b.* from "node:timers/;
    expect(places(except(tests, "tests/support/waiting.ts"), pattern)).toEqual([]);
  });

  test("tests await promises themselves: no matcher does", () => {
    const tests = everything.filter(({ path }) => path.startsWith("tests/"));
    expect(places(tests, /\.(?:rejects|resolves)\b/)).toEqual([]);
  });

  test("the environment is read in config.ts", () => {
    const pattern = /\bprocess\.env\b|\bBun\.env\b|\bimport\.meta\.env\b/;
    // The build names the variable that it replaces.
    expect(places(except(source, "src/config/config.ts", "src/tools/build.ts"), pattern)).toEqual([]);
  });

  test("the prefix of an interface is given to its routes by one constant", () => {
    const surfaces = source.filter(({ path }) => /^src\/(api|service)\//.test(path));
    const prefixes = places(surfaces, /["'`/](?:\/contree)?\/v1\b|["'`]\/(?:contree|mcp)\b/);
    expect(prefixes).toEqual([
      expect.stringMatching(/^src\/api\/app\.ts:\d+: const V1_PREFIX = "\/v1";$/),
      expect.stringMatching(/^src\/api\/app\.ts:\d+: const CONTREE_PREFIX = "\/contree\/v1";$/),
      expect.stringMatching(/^src\/api\/app\.ts:\d+: const MCP_PREFIX = "\/mcp";$/),
    ]);
  });

  test("files of layers are found by who holds them, in the one store of the process", () => {
    // These work on the data directory itself, where they link files before they read them, or serve one caller only.
    const others = except(source, "src/cli/backup/archive.ts");
    expect(places(others, /from ".*\/layers\/(?:layers|layer-holds)\.ts"/)).toEqual([]);
    expect(places(except(source, "src/daemon.ts", "src/cli/gc/collect.ts"), /\bnew LayerStore\(/)).toEqual([]);
    expect(places(except(source, "src/storage/layers/layer-store.ts"), /\bnew LayerChain\(/)).toEqual([]);
  });

  test("use cases know no wire", () => {
    const service = source.filter(({ path }) => path.startsWith("src/service/"));
    expect(
      places(service, /\b(?:Request|Response|Headers|ReadableStream)\b|\bTSchema\b|\bstatus\((?:\d|code)/),
    ).toEqual([]);
  });

  test("the process ends in main.ts", () => {
    expect(places(except(source, "src/main.ts"), /\bprocess\.exit\b|\bprocess\.exitCode\b/)).toEqual([]);
  });

  test("nothing outside the repository is named but by CI", () => {
    expect(places(except(everything), /\.\.\/shared\b/)).toEqual([]);
  });
});

describe("the page", () => {
  const page = source.filter(({ path }) => path.startsWith("src/web/"));

  test("shows what a guest wrote as text, never as markup, and makes no code of it", () => {
    const markup =
      /dangerouslySetInnerHTML|\b(?:inner|outer)HTML\b|insertAdjacentHTML|createContextualFragment|DOMParser|srcdoc/;
    expect(places(page, markup)).toEqual([]);
    expect(places(page, /\bdocument\.write|\beval\(|\bnew Function\b|\bset(?:Timeout|Interval)\(["'`]/)).toEqual([]);
  });

  test("sets styles by property, never as text", () => {
    expect(places(page, /\bstyle=(?:["'`]|\{\s*["'`])|\bcssText\b|setAttribute\(\s*["'`]style\b/)).toEqual([]);
  });

  test("names no address outside", () => {
    // Names below .invalid exist nowhere, and stand for the origin where a relative address is taken apart.
    const addresses = places(page, /\b(?:https?|wss?):\/\/(?!www\.w3\.org\/)(?!\w+\.invalid\b)(?!\$\{)[^\s"'`]/);
    expect(addresses).toEqual([]);
  });
});

describe("text", () => {
  test("no file is longer than it can be read at once", () => {
    const long = everything.filter(({ path, text }) => CODE.test(path) && text.split("\n").length - 1 > FILE_LINES_MAX);
    expect(long.map(({ path, text }) => `${path}: ${text.split("\n").length - 1} lines`)).toEqual([]);
  });

  // The linter does not count the lines of JSX.
  test("no function of the page is longer than a screen", () => {
    const begin = /^(?:export )?(?:(?:async )?function|const \w+ = .*=> \{$)/;
    const long = source.flatMap(({ path, text }) => {
      if (!path.endsWith(".tsx")) return [];
      const lines = text.split("\n");
      return lines.flatMap((line, index) => {
        const count = begin.test(line) ? lines.slice(index).findIndex((end) => /^\};?$/.test(end)) + 1 : 0;
        return count > FUNCTION_LINES_MAX ? [`${path}:${index + 1}: ${count} lines`] : [];
      });
    });
    expect(long).toEqual([]);
  });

  test("the words are those of the field: bun tests/support/source/words.ts", () => {
    expect(wordsToReplace(everything)).toEqual([]);
  });

  test("no line is endless", () => {
    const code = except(written).filter(({ path }) => CODE.test(path));
    const long = places(code, new RegExp(`^.{${LINE_COLUMNS_MAX + 1},}$`));
    expect(long).toEqual([]);
  });

  test("nothing is left to be done, and comments tell no history", () => {
    // "used to" is not history where something is used to do something.
    const pattern =
      /\bTODO\b(?!\(#\d+\))|\bFIXME\b|\bHACK\b|\bXXX\b|\bpreviously\b|\b(?:it|we|this|that) used to\b|={5}|-{10}\s*$/;
    expect(places(except(written.filter(({ path }) => !path.endsWith(".md"))), pattern)).toEqual([]);
  });

  test("no line ends in blanks, and every file ends in one newline", () => {
    expect(places(written, /[ \t]+$/)).toEqual([]);
    const ends = written.filter(({ text }) => text !== "" && !/[^\n]\n$/.test(text));
    expect(ends.map(({ path }) => path)).toEqual([]);
  });

  // Registries of images may be: users paste their references.
  test("no registry, mirror or download host of packages is named", () => {
    const pattern =
      /\b(?:registry\.npmjs|deb\.debian\.org|pypi\.org|pythonhosted|crates\.io|proxy\.golang|maven\.org)\b/;
    expect(places(except(everything), pattern)).toEqual([]);
  });

  test("a catch that ignores says what it expects", () => {
    const silent = source.flatMap(({ path, text }) =>
      [...text.matchAll(/catch(?: \(\w+\))? \{\s*\}|catch \{(?!\s*\/\/)/g)].map(({ index }) => {
        return `${path}:${text.slice(0, index).split("\n").length}`;
      }),
    );
    expect(silent).toEqual([]);
  });

  test("there is no finally: what is acquired is disposed", () => {
    // The client also runs in browsers that know no disposal.
    const disposing = source.filter(({ path }) => !path.startsWith("src/client/"));
    expect(places(disposing, /\}\s*finally\s*\{/)).toEqual([]);
  });
});

describe("names", () => {
  test("numeric constants end in their unit", () => {
    const unit =
      /_(MS|SECONDS|BYTES|KIB|MIB|BITS|WORDS|CHARACTERS|COUNT|PERCENT|RATIO|WEIGHT|FD|PORT|CID|FIELD|TICK|MAX|MIN|DEFAULT|INITIAL)$/;
    const folders = /^src\/(api|supervisor|vm|system|storage|network|oci)\//;
    const bare = source
      .filter(({ path }) => folders.test(path) && !path.endsWith("/protocol.ts"))
      .flatMap(({ path, text }) =>
        [...text.matchAll(/^(?:export )?const ([A-Z][A-Z0-9_]*)(?:: number)? = [\d_.]+(?: \*|;)/gm)]
          .filter(([, name = ""]) => !unit.test(name) && !NO_QUANTITY.test(name))
          .map(([, name]) => `${path}: ${name}`),
      );
    expect(bare).toEqual([]);
  });

  test("files are named in kebab case", () => {
    const names = everything.filter(isTypeScript).map(({ path }) => path.split("/").at(-1) ?? "");
    expect(names.filter((name) => !/^[a-z0-9]+(-[a-z0-9]+)*(\.(test|d|config))?\.tsx?$/.test(name))).toEqual([]);
  });
});

/** Numbers that count and measure nothing: numbers of system calls, flags, versions, magics. */
const NO_QUANTITY =
  /^(SYS|O|AT|MADV|SEEK|PR|F|FI|MFD|AF|SOL|SCM|EPOLL|CLONE|LOCK|RLIMIT|SOCK|PT|NR|E[A-Z]+$)_?|VERSION|MAGIC|FLAG|MODE|SIGNAL|ERRNO|EXIT|LEVEL/;

test("migrations are in the order of their times", () => {
  const journal = JSON.parse(readFileSync(join(ROOT, "src/db/migrations/meta/_journal.json"), "utf8")) as {
    entries: { idx: number; when: number; tag: string }[];
  };
  const times = journal.entries.map(({ when }) => when);
  expect(times.length).toBeGreaterThan(0);
  expect(times.every((when, index) => index === 0 || when > (times[index - 1] ?? 0))).toBe(true);
  const files = readdirSync(join(ROOT, "src/db/migrations")).filter((name) => name.endsWith(".sql"));
  expect(journal.entries.map(({ tag }) => `${tag}.sql`)).toEqual(files.sort());
});
