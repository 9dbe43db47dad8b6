import { keyNames } from "../../config/config.ts";
import {
  type ConfigKey,
  KEYS,
  type KeyName,
  REGISTRY_ACCESS_KEYS,
  REGISTRY_ALLOW_KEY,
  shownDefault,
} from "../../config/keys.ts";

const COMMENT_WIDTH_MAX = 100;

const HEAD = `Configuration of Coppice. Every setting is here with its default, as a comment.

Variables (COPPICE_LISTEN_PORT for listen.port) and flags (--listen-port) come before this file.
coppice config check reports mistakes in it, coppice config show prints the settings in force.
systemctl restart coppice applies changes. If data_dir is another directory, systemd has to allow
it: systemctl edit coppice, and below [Service]: ReadWritePaths=/srv/coppice`;

/** A configuration file with every setting as a comment: its meaning, its form and its default. */
export function configTemplate(): string {
  const sections = new Map<string, KeyName[]>();
  for (const name of keyNames()) {
    const table = name.includes(".") ? (name.split(".")[0] ?? "") : "";
    sections.set(table, [...(sections.get(table) ?? []), name]);
  }
  const parts = [comment(HEAD)];
  for (const [table, names] of sections) {
    const entries = names.map((name) => entry(name.split(".").at(-1) ?? name, name));
    parts.push([...(table === "" ? [] : [`[${table}]`]), ...entries].join("\n\n"));
  }
  return `${[...parts, registryHosts()].join("\n\n")}\n`;
}

function entry(short: string, name: KeyName): string {
  const { doc, form, default: value } = KEYS[name] as ConfigKey<unknown>;
  return `${comment(`${doc} (${form})`)}\n# ${short} = ${literal(value === null ? "" : shownDefault(name), value)}`;
}

/** The default as TOML: sizes and durations have a unit, and so need quotes. */
function literal(text: string, value: unknown): string {
  if (Array.isArray(value)) return JSON.stringify(value);
  const isBare = typeof value === "boolean" || (typeof value === "number" && /^\d+$/.test(text));
  return isBare ? text : JSON.stringify(text);
}

function registryHosts(): string {
  const { insecure, ca_file: caFile } = REGISTRY_ACCESS_KEYS;
  return [
    comment(
      'Access to registries: one table for each host, with its port if it has one; "*" stands for all others. ' +
        "Without a port, the host is listed at 443, and with insecure at 80. " +
        "If all others are refused, also list the hosts to which a registry redirects its clients for layers and tokens.",
    ),
    '# [registries.hosts."registry.lan:5000"]',
    `${comment(REGISTRY_ALLOW_KEY.doc)}\n# allow = ${REGISTRY_ALLOW_KEY.default}`,
    `${comment(insecure.doc)}\n# insecure = ${insecure.default}`,
    `${comment(caFile.doc)}\n# ca_file = ""`,
    `${comment("asked first, in this order")}\n# mirrors = [{ host = "mirror.lan:5000", insecure = true }]`,
  ].join("\n");
}

function comment(text: string): string {
  return text.replaceAll("`", "").split("\n").flatMap(wrapped).join("\n");
}

function wrapped(paragraph: string): string[] {
  const lines: string[] = [];
  let line = "#";
  for (const word of paragraph.split(" ")) {
    if (line.length + word.length + 1 > COMMENT_WIDTH_MAX && line !== "#") {
      lines.push(line);
      line = "#";
    }
    line += word === "" ? "" : ` ${word}`;
  }
  return [...lines, line];
}
