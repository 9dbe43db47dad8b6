import { useEffect, useRef, useState } from "preact/hooks";
import { isAbort, problemOf } from "../../data/problem.ts";
import { childOf } from "../../image/paths.ts";
import { IconButton } from "../../parts/button.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { bytesText } from "../../text/format.ts";
import { printable } from "../../text/printable.ts";
import { type Place, uploadFile } from "./calls.ts";

/** An upload that has not succeeded yet. */
interface Upload {
  readonly key: number;
  readonly name: string;
  readonly size: number;
  readonly share: number;
  /** empty: none */
  readonly problem: string;
  readonly leaving: AbortController;
}

export interface UploadList {
  readonly uploads: readonly Upload[];
  add(files: readonly File[]): void;
  /** Ends an upload, or forgets a failed one. */
  remove(upload: Upload): void;
}

let lastKey = 0;

/** Uploads into a directory, one after the other, which end with the component. @param onDone is called after each */
export function useUploads(place: Place, onDone: () => void): UploadList {
  const [uploads, setUploads] = useState<readonly Upload[]>([]);
  const latest = useRef(uploads);
  latest.current = uploads;
  const queue = useRef(Promise.resolve());
  useEffect(
    () => () => {
      for (const { leaving } of latest.current) leaving.abort();
    },
    [],
  );
  const note = (key: number, change: Partial<Upload> | null) =>
    setUploads((all) =>
      all.flatMap((one) => (one.key !== key ? [one] : change === null ? [] : [{ ...one, ...change }])),
    );
  const send = async (file: File, { key, name, leaving }: Upload) => {
    if (leaving.signal.aborted) return;
    const own = { ...place, path: childOf(place.path, { name }) };
    const onProgress = (share: number) => note(key, { share });
    try {
      await uploadFile(own, file, { signal: leaving.signal, onProgress });
      note(key, null);
      onDone();
    } catch (error) {
      if (!isAbort(error)) note(key, { problem: problemOf(error).message });
    }
  };
  const add = (files: readonly File[]) => {
    for (const file of files) {
      lastKey += 1;
      const { name, size } = file;
      const upload = { key: lastKey, name, size, share: 0, problem: "", leaving: new AbortController() };
      setUploads((all) => [...all, upload]);
      queue.current = queue.current.then(() => send(file, upload));
    }
  };
  const remove = ({ key, leaving }: Upload) => {
    leaving.abort();
    note(key, null);
  };
  return { uploads, add, remove };
}

export function Uploads({ uploads: { uploads, remove } }: { readonly uploads: UploadList }) {
  if (uploads.length === 0) return null;
  return (
    <ul class="stack gap-1" aria-label="Uploads">
      {uploads.map((upload) => (
        <li key={upload.key} class="run-upload row wrap gap-2">
          <GuestText text={upload.name} isMono />
          {upload.problem === "" ? (
            <>
              <progress value={upload.share} max={1} aria-label={`Uploading ${printable(upload.name)}`} />
              <span class="number muted">
                {Math.floor(upload.share * 100)} % of {bytesText(upload.size)}
              </span>
            </>
          ) : (
            <span class="danger small">Not uploaded: {upload.problem}</span>
          )}
          <IconButton
            class="button-small"
            icon="close"
            label={`Leave ${printable(upload.name)}`}
            onClick={() => remove(upload)}
          />
        </li>
      ))}
    </ul>
  );
}
