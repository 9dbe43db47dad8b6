/**
 * Preloaded into `coppice backup`: adds the command COPPICE_TEST_TAR_ACTION to tar, which runs it and waits for it after each
 * record of 10 KiB that it writes. There, `$TAR_ARCHIVE` is the archive and `$COPPICE` the process of the backup.
 */
const { spawn } = Bun;
const action = process.env["COPPICE_TEST_TAR_ACTION"] ?? "";
const command = `COPPICE=${process.pid}; ${action}`;

Bun.spawn = ((argv: string[], options: object) =>
  spawn(
    argv.includes("tar") ? [...argv, "--checkpoint=1", `--checkpoint-action=exec=${command}`] : argv,
    options,
  )) as typeof Bun.spawn;
