import { createHash } from "node:crypto";
import type { Appliance } from "../appliance/appliance.ts";

/** Answers of an appliance, by the path of the request below `/v1`: JSON, or the SHA-256 of other content. */
export type Answers = Readonly<Record<string, unknown>>;

/** Names of all files in a data directory. */
export interface Contents {
  readonly images: readonly string[];
  readonly operations: readonly string[];
  /** an uploaded file */
  readonly file: string;
}

/** Paths that read every kind of stored data: rows, indexes and disks of layers, event logs, uploads. */
function pathsOf({ images, operations, file }: Contents): string[] {
  return [
    "/images?limit=100",
    "/operations?limit=100",
    `/files?uuid=${file}`,
    ...images.flatMap((id) => [
      `/images/${id}`,
      `/images/${id}/lineage`,
      `/inspect/${id}`,
      `/inspect/${id}/list?path=/`,
      `/inspect/${id}/list?path=/data`,
      `/inspect/${id}/download?path=/data/base`,
      `/inspect/${id}/archive?path=/data`,
    ]),
    ...operations.flatMap((id) => [`/operations/${id}`, `/operations/${id}/events`]),
  ];
}

/** Reads all stored data of an appliance. @throws Error when a request fails */
export async function readAnswers(appliance: Appliance, contents: Contents): Promise<Answers> {
  const answers: Record<string, unknown> = {};
  for (const path of pathsOf(contents)) {
    const response = await appliance.fetch(path, { headers: { accept: "application/json, */*" } });
    if (!response.ok) throw new Error(`${path} answered ${response.status}: ${await response.text()}`);
    const isJson = response.headers.get("content-type")?.startsWith("application/json") === true;
    answers[path] = isJson
      ? await response.json()
      : createHash("sha256")
          .update(await response.bytes())
          .digest("hex");
  }
  return answers;
}
