import { given } from "../../domain/given.ts";
import { shownSize } from "../../domain/text/shown.ts";
import { silentLog } from "../../log.ts";
import { CliError, command, expectPositionals, JSON_OPTION } from "../command.ts";
import { CONFIG_OPTIONS, configOf } from "../config/config-options.ts";

const { config, "data-dir": dataDir, "images-untagged-ttl": untaggedTtl, "files-ttl": filesTtl } = CONFIG_OPTIONS;

export const gcCommand = command({
  name: "gc",
  summary: "remove expired images and files, and free their space",
  synopsis: "[--dry-run] [OPTIONS]",
  description:
    "Removes images without a tag that are older than images.untagged_ttl, files that are\n" +
    "older than files.ttl, memory of paused sandboxes that is older than images.memory_ttl,\n" +
    "and layers that no image needs. A running appliance does it with its own configuration,\n" +
    "and once an hour by itself. If no appliance runs, this command works on the data\n" +
    "directory. Sizes are allocated bytes of the file system.",
  examples: ["coppice gc --dry-run", "coppice gc --images-untagged-ttl 7d"],
  options: {
    "dry-run": { type: "boolean", doc: "only print how much could be freed" },
    ...JSON_OPTION,
    ...given({ config, "data-dir": dataDir, "images-untagged-ttl": untaggedTtl, "files-ttl": filesTtl }),
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    const { "dry-run": dryRun = false, json = false, ...rest } = options;
    // Loaded only here: no other command of the client needs the store.
    const { collectGarbage, GcError } = await import("./collect.ts");
    const collection = await collectGarbage(configOf(rest, environment), silentLog, dryRun === true).catch((error) => {
      throw error instanceof GcError ? new CliError(error.message) : error;
    });
    const { images, layers, layerBytes, files, fileBytes, memoryImages, memoryImageBytes } = collection;
    const bytes = layerBytes + fileBytes + memoryImageBytes;
    if (json === true) {
      const memory = { memory_images: memoryImages, memory_image_bytes: memoryImageBytes };
      const counts = { images, layers, layer_bytes: layerBytes, files, file_bytes: fileBytes, ...memory };
      const body = { dry_run: dryRun, ...counts, bytes };
      await io.stdout(`${JSON.stringify(body)}\n`);
      return 0;
    }
    const verb = dryRun === true ? "would free" : "freed";
    await io.stdout(
      `${verb} ${shownSize(bytes)}: ${images} images, ${layers} layers (${shownSize(layerBytes)}), ` +
        `${files} files (${shownSize(fileBytes)}), memory of ${memoryImages} sandboxes (${shownSize(memoryImageBytes)})\n`,
    );
    return 0;
  },
});
