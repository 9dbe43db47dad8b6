import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { JSON_DEPTH_MAX, JSON_NAMES_COUNT_MAX, JSON_VALUES_COUNT_MAX } from "../../src/api/body/json-structure.ts";
import { STATUS_OF_ERROR } from "../../src/api/errors.ts";
import { COMMANDS } from "../../src/cli/commands.ts";
import { keyNames } from "../../src/config/config.ts";
import { KEYS, shownDefault } from "../../src/config/keys.ts";
import { ACCOUNT_LIMITS } from "../../src/domain/account/limits.ts";
import { ERROR_CODES } from "../../src/domain/errors.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT, IMPORT_TIMEOUT_SECONDS_MAX, TAGS_COUNT_MAX } from "../../src/domain/image.ts";
import { VARIABLES_BYTES_MAX, VARIABLES_COUNT_MAX } from "../../src/domain/image-defaults.ts";
import {
  ARGUMENT_BYTES_MAX,
  CHECKPOINT_TIMEOUT_SECONDS_DEFAULT,
  CHECKPOINT_TIMEOUT_SECONDS_MAX,
  ENV_COUNT_MAX,
  FILES_COUNT_MAX,
  STDIN_BYTES_MAX,
  TIMEOUT_SECONDS_DEFAULT,
} from "../../src/domain/instance.ts";
import { NETWORK_PORTS_COUNT_MAX, NETWORK_RULES_COUNT_MAX } from "../../src/domain/network.ts";
import { OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX } from "../../src/domain/output.ts";
import { SCOPES } from "../../src/domain/scope.ts";
import { shownSize } from "../../src/domain/text/shown.ts";
import { GUEST_NAME_BYTES_MAX, GUEST_PATH_BYTES_MAX } from "../../src/domain/tree/guest-path.ts";
import { LIMIT_DEFAULT, LIMIT_MAX } from "../../src/domain/tree/listing.ts";
import { EROFS_ENTRIES_MAX, EXT4_DIRECTORY_ENTRIES_MAX } from "../../src/oci/base-disk.ts";
import { IMAGE_LAYERS_COUNT_MAX } from "../../src/oci/manifest.ts";
import { READERS_COUNT_MAX } from "../../src/storage/events/event-logs.ts";
import { EVENT_LOG_BYTES_MAX, INDEX_ENTRIES_COUNT_MAX } from "../../src/storage/limits.ts";
import { TOOLS_MEMORY_BYTES } from "../../src/supervisor/imports/import-bounds.ts";
import { CAPTURE_MS } from "../../src/supervisor/machines/guest-budgets.ts";
import { LAYERS_COUNT_MAX } from "../../src/vm/agent/protocol.ts";
import {
  OVERHEAD_BYTES,
  PROCESSOR_BYTES,
  TEMPLATES_BYTES_MAX,
  TEMPLATES_BYTES_MIN,
} from "../../src/vm/machine-memory.ts";
import { DOCUMENTS, documentText, languagesOf, rowsOf, sectionOf } from "../support/source/documents.ts";

const ROOT = join(import.meta.dir, "../..");
const pages = DOCUMENTS.map((path) => ({ path, text: documentText(path) }));
const everything = pages.map(({ text }) => text).join("\n");
const size = (bytes: number): string => shownSize(bytes).replace(".0", "");

test("the settings are the settings of the code", () => {
  const rows = keyNames().map((name) => `| \`${name}\` | ${shownDefault(name)} | ${KEYS[name].doc} |`);
  expect(rowsOf(sectionOf("docs/configuration.md", "Settings"))).toEqual(rows);
});

test("the limits are the limits of the code", () => {
  const seconds = `${TIMEOUT_SECONDS_DEFAULT} s by default, at most \`limits.instance_timeout_max\``;
  const configured = "`limits.image_bytes_max` and `limits.image_entries_max`";
  const directory = `${EXT4_DIRECTORY_ENTRIES_MAX} entries, if one of its names has 255 bytes or the image has more than ${EROFS_ENTRIES_MAX} entries`;
  const waiting = `${ACCOUNT_LIMITS.waitingOperations.max}, and ${size(ACCOUNT_LIMITS.waitingRequests.max)} of requests`;
  const { max, total } = ACCOUNT_LIMITS.waitingQueries;
  const queries = `${max}, and ${total} of all accounts, which take turns; more are refused with 429`;
  const overhead = `a 32nd of that, ${size(OVERHEAD_BYTES)}, and ${size(PROCESSOR_BYTES)}`;
  const walks = `${ACCOUNT_LIMITS.walks.max}; more wait for up to ${ACCOUNT_LIMITS.walks.waitMsMax / 1000} s, and are then refused with 429`;
  const json = `${JSON_VALUES_COUNT_MAX}, of which ${JSON_NAMES_COUNT_MAX} have names; nested ${JSON_DEPTH_MAX} deep`;
  const gib = (bytes: number): string => `${bytes / 1024 ** 3} GiB`;
  const templates = `an eighth of the budget, at least ${size(TEMPLATES_BYTES_MIN)}, at most ${gib(TEMPLATES_BYTES_MAX)}`;
  const tools = `${gib(TOOLS_MEMORY_BYTES)}, but at most half of the memory budget, or the memory of one VM if that is more`;
  expect(rowsOf(sectionOf("docs/configuration.md", "Limits"))).toEqual([
    `| time of a run | ${seconds} |`,
    `| time after the command, to capture its files | ${CAPTURE_MS / 1000} s, and more in proportion to the written bytes and files |`,
    `| time of a checkpoint | ${CHECKPOINT_TIMEOUT_SECONDS_DEFAULT} s by default, at most ${CHECKPOINT_TIMEOUT_SECONDS_MAX} s |`,
    `| time of an import | ${IMPORT_TIMEOUT_SECONDS_DEFAULT} s by default, at most ${IMPORT_TIMEOUT_SECONDS_MAX} s |`,
    `| captured bytes of each output stream | ${size(OUTPUT_BYTES_DEFAULT)} by default, at most ${size(OUTPUT_BYTES_MAX)} |`,
    `| events of an operation | ${size(EVENT_LOG_BYTES_MAX)}; the command's output is stored beyond that, up to its own limit |`,
    `| concurrent readers of events | ${READERS_COUNT_MAX} of one operation, ${ACCOUNT_LIMITS.eventReaders.max} of one account; more are refused with 429 |`,
    `| standard input | ${size(STDIN_BYTES_MAX)} |`,
    `| waiting operations of an account | ${waiting}; more are refused with 429 |`,
    `| waiting queries of an account that skip or search thousands of rows | ${queries} |`,
    `| concurrent listings, archives and comparisons of an account | ${walks} |`,
    `| concurrent replies of an account with long outputs, arrays of events, or large files in several pieces | ${walks} |`,
    `| rules of the network of a run | ${NETWORK_RULES_COUNT_MAX}, each with up to ${NETWORK_PORTS_COUNT_MAX} ports |`,
    `| values of a JSON body (items of arrays and fields of objects) | ${json} |`,
    `| variables of a command in its request | ${ENV_COUNT_MAX} |`,
    `| one argument or variable | ${ARGUMENT_BYTES_MAX} bytes |`,
    `| variables of an image | ${VARIABLES_COUNT_MAX}, and ${VARIABLES_BYTES_MAX / 1024} KiB together; those of an import beyond that are left out |`,
    `| tags of an image | ${TAGS_COUNT_MAX} |`,
    `| input files of a run | ${FILES_COUNT_MAX} |`,
    `| a path in an image | ${GUEST_PATH_BYTES_MAX} bytes, and ${GUEST_NAME_BYTES_MAX} bytes for each name |`,
    `| bytes and files of an imported image | ${configured}; ${IMAGE_LAYERS_COUNT_MAX} layers |`,
    `| a directory of an imported image | ${directory} |`,
    `| memory of the programs of an import | ${tools} |`,
    `| memory of a VM in the budget | the guest's memory, rounded up to a power of two, plus ${overhead} for each vCPU |`,
    `| VMs that list checkpoints, in addition to the budget | 1, of the default shape |`,
    `| memory of templates, in addition to the budget | ${templates}; a single template may exceed it |`,
    `| entries of one layer | ${INDEX_ENTRIES_COUNT_MAX} |`,
    `| disks of one run | ${LAYERS_COUNT_MAX}; longer chains of layers are merged first |`,
    `| entries of a listing page | ${LIMIT_DEFAULT} by default, at most ${LIMIT_MAX} |`,
  ]);
});

test("the errors and scopes are those of the code", () => {
  const rules = sectionOf("docs/api.md", "Rules");
  const errors = rowsOf(rules).map((row) => row.split(" | ").slice(0, 2).join(" "));
  expect(errors).toEqual(ERROR_CODES.map((code) => `| \`${code}\` ${STATUS_OF_ERROR[code]}`));
  const list = /\*\*Scopes\.\*\* ((?:`[a-z:]+`,?\s+)+`[a-z:]+`)\./.exec(rules)?.[1] ?? "";
  expect(list.match(/[a-z:]+/g)).toEqual([...SCOPES]);
});

test("every command in the documents exists", () => {
  const commands = [...everything.matchAll(/(?:dist\/|^\$ |\$\(|\| |`)coppice ((?:[a-z]+ )?[a-z]+)/gm)].map(
    ([, words = ""]) => words,
  );
  const names = new Set(COMMANDS.flatMap(({ name }) => [name, name.split(" ")[0] ?? ""]));
  const unknown = commands.filter((words) => !names.has(words) && !names.has(words.split(" ")[0] ?? ""));
  expect(commands.length).toBeGreaterThan(40);
  expect(unknown).toEqual([]);
});

test("every file, folder and target in the documents exists", () => {
  const makefile = readFileSync(join(ROOT, "Makefile"), "utf8");
  const targets = [...everything.matchAll(/`(?:[A-Z_a-z]+=\S+ )?make ([a-z0-9-]+)/g)].map(([, target = ""]) => target);
  expect(targets.length).toBeGreaterThan(15);
  expect(targets.filter((target) => !new RegExp(`^${target}:`, "m").test(makefile))).toEqual([]);
  const named = /`(?:\.\/)?((?:src|tests|vm-assets|systemd|docs)(?:\/[\w.-]+)*)`/g;
  const paths = [...everything.matchAll(named)].map(([, path = ""]) => path);
  expect(paths.length).toBeGreaterThan(30);
  expect(paths.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
});

test("every link leads to an existing page and heading", () => {
  const broken = pages.flatMap(({ path, text }) =>
    [...text.matchAll(/\]\(([^)\s]+)\)/g)].flatMap(([, link = ""]) => {
      const [file = "", anchor] = link.split("#");
      const target = file === "" ? path : join(dirname(path), file);
      if (!existsSync(join(ROOT, target))) return [`${path}: ${link}`];
      const headings = documentText(target).match(/^#+ .*$/gm) ?? [];
      const anchors = headings.map((line) => line.replace(/^#+ /, "").toLowerCase().replaceAll(" ", "-"));
      return anchor === undefined || anchors.includes(anchor) ? [] : [`${path}: ${link}`];
    }),
  );
  expect(broken).toEqual([]);
});

test("every page of docs has a row in the README, which takes ten minutes to read", () => {
  const rows = sectionOf("README.md", "Where to read on");
  const names = DOCUMENTS.filter((path) => path.startsWith("docs/"));
  expect(names.filter((path) => !rows.includes(`](${path})`))).toEqual([]);
  expect(documentText("README.md").split("\n").length).toBeLessThanOrEqual(210);
});

test("every block with commands is run by a test", () => {
  for (const { path, text } of pages) {
    // TypeScript programs belong to the client's package, whose test compiles its page and the page that repeats it.
    const unknown = languagesOf(text).filter((language) => !/^(console|sh|json|text|toml|mermaid|ts)$/.test(language));
    expect({ path, unknown }).toEqual({ path, unknown: [] });
  }
});
