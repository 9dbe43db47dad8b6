import { existsSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { digestOf } from "../images/registry.ts";

const CACHE = resolve(import.meta.dir, "../../../build/e2b");
const INSTALL_MS_MAX = 300_000;
const OUTPUT_BYTES_MAX = 16_777_216;

/** Published packages that are installed together, as their language's installer names them: `e2b==2.45.1`, `e2b@2.45.0`. */
export interface Client {
  readonly language: "python" | "node";
  readonly packages: readonly string[];
  /** packages that are installed first, without what they demand */
  readonly bare?: readonly string[];
  /** default: python3 */
  readonly interpreter?: string;
}

const python = (...packages: string[]): Client => ({ language: "python", packages });
const node = (...packages: string[]): Client => ({ language: "node", packages });

const TEST_RUNNER = ["pytest==9.2.0", "pytest-asyncio==1.5.0"];

/** The releases that `docs/e2b.md` names. */
export const CLIENTS = {
  python: python("e2b==2.45.1"),
  javascript: node("e2b@2.51.0"),
  cli: node("@e2b/cli@2.19.0"),
  langchain: python("langchain-e2b==0.0.6", "langchain-tests==1.1.9", ...TEST_RUNNER),
  agents: python("openai-agents[e2b]==0.24.0", "e2b==2.31.0"),
  interpreter: python("e2b-code-interpreter==2.11.5", "e2b==2.63.0"),
  computesdk: node("@computesdk/e2b@1.7.52"),
} as const;

/** Clients of the tests with `COPPICE_TEST_E2B=full`. */
export const LONG_CLIENTS = {
  // Harbor demands a release of certifi that mirrors get later than Harbor itself, so what it imports is listed.
  harbor: {
    ...python(
      ...["e2b==2.63.0", "certifi", "pydantic", "shortuuid", "typer", "requests", "pyyaml", "rich", "toml", "tenacity"],
      ...["python-dotenv", "litellm", "jinja2", "dirhash", "packaging", "semver", "fastapi", "uvicorn", "pathspec"],
      ...["supabase", "httpx", "filelock", "platformdirs", "pyjwt", "jsonschema", "dockerfile-parse"],
    ),
    bare: ["harbor==0.25.0"],
    interpreter: "python3.12",
  },
  miniSweAgent: python("mini-swe-agent==2.4.6", "contree-sdk==0.3.6"),
} as const satisfies Readonly<Record<string, Client>>;

/** Further releases, tested with `COPPICE_TEST_E2B=full`. */
export const FURTHER_CLIENTS = {
  "Python 2.20.3": python("e2b==2.20.3"),
  "Python 2.31.0": python("e2b==2.31.0"),
  "Python 2.63.0": python("e2b==2.63.0"),
  "JavaScript 2.45.0": node("e2b@2.45.0"),
} as const;

/** The newest releases: a change of a client fails the ring on the day of its publication. */
export const NEWEST_CLIENTS = { python: python("e2b"), javascript: node("e2b") } as const;

/** `full` runs all releases; `offline` runs those that were installed before, without the registries. */
export const MODE = process.env["COPPICE_TEST_E2B"] ?? "";

/** Clients that this run of the ring needs. */
export function neededClients(): Client[] {
  return [
    ...Object.values(CLIENTS),
    ...(MODE === "full" ? [...Object.values(FURTHER_CLIENTS), ...Object.values(LONG_CLIENTS)] : []),
    ...(MODE === "offline" ? [] : Object.values(NEWEST_CLIENTS)),
  ];
}

/** The directory of an installed client: that of Python's modules, or the one which has `node_modules`. */
export function directoryOf({ language, packages, bare = [] }: Client): string {
  return join(CACHE, `${language}-${digestOf([...bare, ...packages].join(" ")).slice(7, 23)}`);
}

/** The interpreter of a client's programs, and what its environment needs: with pyenv, a release is active when it is named. */
export function pythonOf({ interpreter = "python3" }: Client): {
  readonly program: string;
  readonly env: Record<string, string>;
} {
  const [, release] = /^python(3\.\d+)$/.exec(interpreter) ?? [];
  return { program: interpreter, env: release === undefined ? {} : { PYENV_VERSION: release } };
}

/**
 * Installs a client, unless its releases are pinned and installed.
 * @throws CommandError when the registry cannot be reached, or does not have the package
 */
export async function installClient(client: Client): Promise<void> {
  const directory = directoryOf(client);
  const isNewest = Object.values<Client>(NEWEST_CLIENTS).includes(client);
  if (existsSync(directory) && (MODE === "offline" || !isNewest)) return;
  const parts = `${directory}.parts`;
  await rm(parts, { recursive: true, force: true });
  await mkdir(parts, { recursive: true });
  for (const installation of installations(client, parts)) {
    // The settings of the installers: proxies, certificates and caches.
    const env = { ...(process.env as Record<string, string>), ...pythonOf(client).env };
    const argv = ["nice", "-n", "5", ...installation];
    await run({ argv, env, cwd: parts, timeoutMs: INSTALL_MS_MAX, stdoutBytesMax: OUTPUT_BYTES_MAX });
  }
  await rm(directory, { recursive: true, force: true });
  await rename(parts, directory);
}

function installations(client: Client, directory: string): string[][] {
  const { language, packages, bare = [] } = client;
  if (language === "node") {
    const options = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"];
    return [["npm", "install", "--prefix", directory, ...options, ...packages]];
  }
  const install = [pythonOf(client).program, "-m", "pip", "install", "--quiet", "--target", directory];
  return [...(bare.length > 0 ? [[...install, "--no-deps", ...bare]] : []), [...install, ...packages]];
}
