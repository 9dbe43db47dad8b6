import { useEffect, useRef, useState } from "preact/hooks";
import { isAbort, problemOf } from "../../data/problem.ts";
import { uploadWithProgress } from "../../data/upload.ts";
import { IconButton } from "../../parts/button.tsx";
import { Field } from "../../parts/field.tsx";
import { FileChooser, useFileDrop } from "../../parts/form/file-chooser.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { bytesText } from "../../text/format.ts";
import type { PlacedFile } from "./run-form.ts";

/** An upload that has not succeeded yet. */
interface Upload {
  readonly share: number;
  readonly size: number;
  readonly problem: string | undefined;
  readonly leaving: AbortController;
}

interface FilesFieldProps {
  readonly files: readonly PlacedFile[];
  /** @param change computes the new files from the present ones */
  readonly onFiles: (change: (files: readonly PlacedFile[]) => readonly PlacedFile[]) => void;
  readonly problem: string | undefined;
  readonly mayUpload: boolean;
}

const STORE = { path: "/v1/files", method: "POST" } as const;

/** Files of an earlier run have the numbers from 0 on. */
let lastKey = 1_000_000;

/** Uploads of the files of a form, which end with the component. */
function useUploads(onFiles: FilesFieldProps["onFiles"], mayUpload: boolean) {
  const [uploads, setUploads] = useState<Readonly<Record<number, Upload>>>({});
  const latest = useRef(uploads);
  latest.current = uploads;
  useEffect(
    () => () => {
      for (const { leaving } of Object.values(latest.current)) leaving.abort();
    },
    [],
  );

  const note = (key: number, change: Partial<Upload> | null) =>
    setUploads((all) => {
      const { [key]: one, ...others } = all;
      return change === null || one === undefined ? others : { ...others, [key]: { ...one, ...change } };
    });
  const add = (chosen: readonly File[]) => {
    if (!mayUpload) return;
    for (const file of chosen) {
      lastKey += 1;
      const key = lastKey;
      const leaving = new AbortController();
      onFiles((all) => [...all, { key, name: file.name, path: `/root/${file.name}`, mode: "0644", uuid: null }]);
      setUploads((all) => ({ ...all, [key]: { share: 0, size: file.size, problem: undefined, leaving } }));
      const onProgress = (share: number) => note(key, { share });
      uploadWithProgress<{ uuid: string }>(file, { ...STORE, signal: leaving.signal, onProgress }).then(
        ({ uuid }) => {
          onFiles((all) => all.map((one) => (one.key === key ? { ...one, uuid } : one)));
          note(key, null);
        },
        (error: unknown) => {
          if (!isAbort(error)) note(key, { problem: problemOf(error).message });
        },
      );
    }
  };
  const change = (key: number, values: Partial<PlacedFile>) =>
    onFiles((all) => all.map((one) => (one.key === key ? { ...one, ...values } : one)));
  const remove = (key: number) => {
    uploads[key]?.leaving.abort();
    note(key, null);
    onFiles((all) => all.filter((one) => one.key !== key));
  };
  return { uploads, add, change, remove };
}

/** Input files. Each is uploaded as soon as it is chosen. */
export function FilesField({ files, onFiles, problem, mayUpload }: FilesFieldProps) {
  const { uploads, add, change, remove } = useUploads(onFiles, mayUpload);
  const { isOver, target } = useFileDrop(add);
  return (
    <fieldset
      class={isOver ? "run-files stack gap-3 shrink run-files-over" : "run-files stack gap-3 shrink"}
      {...target}
    >
      <legend>Files</legend>
      {files.map(({ key, name, path, mode }) => (
        <div key={key} class="run-file items-end gap-2-3">
          <div class="run-file-name row wrap gap-1-3 shrink">
            {name === null ? <span class="muted">Uploaded before</span> : <GuestText text={name} hasTitle />}
            <UploadState upload={uploads[key]} />
          </div>
          <Field label="Path in the sandbox" isMono value={path} onValue={(value) => change(key, { path: value })} />
          <Field label="Mode" isMono value={mode} onValue={(value) => change(key, { mode: value })} />
          <IconButton icon="trash" label={`Remove ${name ?? path}`} onClick={() => remove(key)} />
        </div>
      ))}
      {problem === undefined ? null : (
        <p class="field-problem danger small" role="alert">
          {problem}
        </p>
      )}
      <p class="row wrap gap-2-3">
        <FileChooser text="Choose files" label="Files" isSmall isDisabled={!mayUpload} onFiles={add} />
        <span class="muted">
          {mayUpload ? "or drop them here." : "The token of this session lacks the scope files:write."}
        </span>
      </p>
    </fieldset>
  );
}

function UploadState({ upload }: { readonly upload: Upload | undefined }) {
  if (upload === undefined) return null;
  const { share, size, problem } = upload;
  if (problem !== undefined) return <p class="field-problem danger small">Not uploaded: {problem}</p>;
  return (
    <span class="run-upload inline-row gap-2">
      <progress value={share} max={1} aria-label="Uploading" />
      <span class="number muted">
        {Math.floor(share * 100)} % of {bytesText(size)}
      </span>
    </span>
  );
}
