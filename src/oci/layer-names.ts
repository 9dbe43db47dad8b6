import { join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import { runTool, type ToolBounds } from "./tool.ts";
import { commonFailure } from "./tool-failure.ts";

/** An error shows this much of the end of a name, in `bytes`. */
const NAME_BYTES_MAX = 300;
/**
 * Prints the first such name of all blobs. tar fails for blobs that are not layers and for malformed layers; umoci
 * refuses the latter.
 */
const FIND_MISREAD_NAME = [
  'for blob in "$1"/*; do',
  '  name=$(tar --list --force-local --quoting-style=escape --file="$blob" 2>/dev/null |',
  "    grep -a -m 1 -E '(^|/)\\.wh\\.\\.?\\.?(/|$)' | tail -c \"$2\")",
  '  if [ -n "$name" ]; then printf %s "$name"; exit; fi',
  "done",
].join("\n");

/**
 * Refuses an image that has a layer with a whiteout named `.wh.`, `.wh..` or `.wh...`. umoci uses the rest of the name as
 * a path, so it would remove the directory of the whiteout, or that directory's parent.
 * @param layout directory of an OCI layout whose layers umoci can read
 * @throws ApiError `validation_error`, and for failures that any tool can have; the signal's reason
 */
export async function refuseMisreadNames(layout: string, bounds: ToolBounds): Promise<void> {
  const argv = ["sh", "-c", FIND_MISREAD_NAME, "sh", join(layout, "blobs/sha256"), `${NAME_BYTES_MAX}`];
  const confinement = { readable: [layout], writable: [], network: null };
  const name = await runTool({ argv, env: { LC_ALL: "C" }, confinement }, bounds).catch((error: unknown) => {
    throw commonFailure(error, bounds.timeoutMs) ?? error;
  });
  if (name.byteLength === 0) return;
  const message = `the image cannot be unpacked: its whiteout ${Buffer.from(name).toString("latin1")} is for no file`;
  throw new ApiError("validation_error", message);
}
