import { shownSize } from "../../domain/text/shown.ts";
import { CliError, type Command, command, expectPositionals, JSON_OPTION, UsageError } from "../command.ts";
import { configOf, DATA_OPTIONS } from "../config/config-options.ts";
import { INTERRUPTS, type Io } from "../io.ts";

export const backupCommands: readonly Command[] = [
  command({
    name: "backup",
    summary: "write the whole data directory to one archive",
    synopsis: "-o FILE [OPTIONS]",
    description:
      "A tar archive with the database, keys, layers, files and events of one moment. Works while the\n" +
      "appliance runs. The archive contains the keys that sign tokens: store it where no other user can read it.",
    examples: ["coppice backup --output /mnt/nas/coppice-$(date +%F).tar"],
    options: {
      output: {
        type: "string",
        short: "o",
        value: "FILE",
        doc: "output file; replaces an existing one",
      },
      ...JSON_OPTION,
      ...DATA_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { output, json = false, ...rest } = options;
      if (output === undefined) throw new UsageError("--output is missing");
      const { backUp } = await import("./archive.ts");
      const { images, layers, files, sizeBytes } = await known(io, (signal) =>
        backUp(configOf(rest, environment).dataDir, output, signal),
      );
      if (json) await io.stdout(`${JSON.stringify({ images, layers, files, size_bytes: sizeBytes })}\n`);
      io.stderr(`${output}: ${images} images, ${layers} layers, ${files} files, ${shownSize(sizeBytes)}\n`);
      return 0;
    },
  }),
  command({
    name: "restore",
    summary: "make a data directory from a backup",
    synopsis: "FILE [OPTIONS]",
    description:
      "The data directory must be new, or have no database. Everything is checked first. Operations that ran when the\n" +
      "backup was made are FAILED after it; operations that waited run. Tokens that were revoked after the backup\n" +
      "are valid again, unless --rotate-keys ends all tokens.",
    examples: [
      "systemctl stop coppice && coppice restore coppice.tar && systemctl start coppice",
      "coppice restore coppice.tar --rotate-keys",
    ],
    options: {
      "rotate-keys": { type: "boolean", doc: "end all tokens of the backup; make new ones with token create" },
      ...JSON_OPTION,
      ...DATA_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const { json = false, "rotate-keys": rotateKeys = false, ...rest } = options;
      const [archive = ""] = expectPositionals(positionals, "FILE");
      const { restore } = await import("./archive.ts");
      const { dataDir } = configOf(rest, environment);
      const { images, layers, files } = await known(io, (signal) => restore(archive, dataDir, { rotateKeys, signal }));
      if (json) await io.stdout(`${JSON.stringify({ images, layers, files })}\n`);
      io.stderr(`${dataDir}: ${images} images, ${layers} layers, ${files} files\n`);
      io.stderr(
        rotateKeys
          ? "all tokens of the backup have ended; coppice token create makes new ones\n"
          : "tokens that were revoked after the backup was made are valid again; to end all tokens of the backup:\n" +
              "  coppice token rotate --grace 0\n",
      );
      return 0;
    },
  }),
];

/** Runs `work` until it ends or the user interrupts it. Failures that a user can mend become messages. */
async function known<T>(io: Io, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const { BackupError } = await import("./archive.ts");
  const interrupted = new AbortController();
  // A closed terminal sends SIGHUP: then, too, no file may be left behind.
  using _interrupts = io.onSignal([...INTERRUPTS, "SIGHUP"], (signal) =>
    interrupted.abort(new CliError(`ended by ${signal}`)),
  );
  try {
    return await work(interrupted.signal);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const expected =
      error instanceof BackupError || ["EACCES", "EPERM", "ENOENT", "EROFS", "ENOSPC"].includes(code ?? "");
    throw expected ? new CliError(message, undefined, { cause: error }) : error;
  }
}
