import serviceUnit from "../../../systemd/coppice.service" with { type: "text" };
import sysusers from "../../../systemd/coppice.sysusers.conf" with { type: "text" };
import tmpfiles from "../../../systemd/coppice.tmpfiles.conf" with { type: "text" };
import machinesUnit from "../../../systemd/coppice-machines.service" with { type: "text" };
import type { Command } from "../command.ts";
import { completionScript } from "../completion.ts";
import { configTemplate } from "../config/config-template.ts";

export const PROGRAM_PATH = "/usr/local/bin/coppice";
export const CONFIG_PATH = "/etc/coppice/config.toml";
export const DATA_DIRECTORY = "/var/lib/coppice";

export interface InstalledFile {
  readonly path: string;
  readonly content: string;
  readonly mode: number;
}

/** The files next to the program: an upgrade replaces them, and uninstall removes them. */
export function installedFiles(commands: readonly Command[]): readonly InstalledFile[] {
  const file = (path: string, content: string): InstalledFile => ({ path, content, mode: 0o644 });
  return [
    file("/usr/local/lib/systemd/system/coppice.service", serviceUnit),
    file("/usr/local/lib/systemd/system/coppice-machines.service", machinesUnit),
    file("/usr/local/lib/sysusers.d/coppice.conf", sysusers),
    file("/usr/local/lib/tmpfiles.d/coppice.conf", tmpfiles),
    file("/usr/local/share/doc/coppice/config.toml", configTemplate()),
    file("/usr/local/share/bash-completion/completions/coppice", completionScript("bash", commands)),
    file("/usr/local/share/zsh/site-functions/_coppice", completionScript("zsh", commands)),
    file("/usr/local/share/fish/vendor_completions.d/coppice.fish", completionScript("fish", commands)),
  ];
}

/** Directories of the appliance, with their modes. */
export const DIRECTORIES: readonly (readonly [string, number])[] = [
  ["/etc/coppice", 0o750],
  [DATA_DIRECTORY, 0o700],
  ["/run/coppice", 0o755],
];
