import { type ImportContext, type ImportSource, type ImportSubmission, importWorker } from "../imports/import-image.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes } from "../operations/requests.ts";

/** The part of an import's request that is stored as long as the operation. */
type ImportBody = Omit<ImportSubmission, "credentials">;

/** The request of an import, as clients can read it. */
export interface KeptImport {
  readonly kind: "image_import";
  readonly source: ImportSource;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
  readonly hadCredentials: boolean;
}

export const importKind: Kind<ImportSubmission, ImportSubmission, KeptImport, ImportContext> = {
  name: "image_import",
  store({ credentials, ...body }) {
    const fileIds = body.source.kind === "archive" ? [body.source.fileId] : [];
    const sizeBytes = jsonBytes(body) + (credentials === null ? 0 : jsonBytes(credentials));
    return { row: { body, sizeBytes, fileIds }, stdin: null, credentials, imageId: null };
  },
  read: ({ body, credentials }) => ({ ...(body as ImportBody), credentials }),
  kept({ body }, { hadCredentials }) {
    const { source, tag, timeoutSeconds } = body as ImportBody;
    return { kind: "image_import", source, tag, timeoutSeconds, hadCredentials };
  },
  worker: importWorker,
};
