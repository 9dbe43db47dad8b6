import { join } from "node:path";
import { ApiError } from "../../domain/errors.ts";

/** How a file of the page is stored: as it is, and compressed once by the build. */
export const WEB_ENCODINGS = { identity: "", gzip: ".gz", br: ".br" } as const;
export type WebEncoding = keyof typeof WEB_ENCODINGS;

/** A file of the page, below the name that its content gave it. */
export interface WebFile {
  /** its Content-Type */
  readonly type: string;
  /** size of each stored form, in bytes */
  readonly bytes: Readonly<Record<WebEncoding, number>>;
}

/** The page's files, as the build lists them in `manifest.json`. */
export interface WebManifest {
  /** the module that the index page starts */
  readonly script: string;
  readonly style: string;
  /** modules that the script imports at once, which the index page may ask for early */
  readonly preloads: readonly string[];
  /** the picture of the tab */
  readonly icon: string;
  readonly files: Readonly<Record<string, WebFile>>;
}

/** Directory inside the executable, and below `build`, that the build fills with `manifest.json` and the files. */
export const WEB_DIRECTORY = "web";

/** Prefix of the addresses of the page's files, which the build writes into the modules. */
export const WEB_ASSETS_PATH = "/web/assets/";

// In the executable, every module lies in the directory that holds the embedded ones.
const directory = Bun.isStandaloneExecutable
  ? join(import.meta.dir, WEB_DIRECTORY)
  : join(import.meta.dir, "../../../build", WEB_DIRECTORY);

/**
 * The list of the page's files. From source it is read each time, because `make dev` builds the page while it is served.
 * @throws ApiError `unavailable` when the program runs from source and the page was not built
 */
export async function readWebManifest(): Promise<WebManifest> {
  const file = Bun.file(join(directory, "manifest.json"));
  if (!(await file.exists())) throw new ApiError("unavailable", "the page was not built: `make build` builds it");
  return (await file.json()) as WebManifest;
}

/** A stored form of a file that the manifest names. The name must be one of the manifest's: it becomes part of a path. */
export function webFile(name: string, encoding: WebEncoding): Bun.BunFile {
  return Bun.file(join(directory, `${name}${WEB_ENCODINGS[encoding]}`));
}
