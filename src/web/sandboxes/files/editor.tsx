import { useEffect, useState } from "preact/hooks";
import { addressOf } from "../../data/api.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { useLoaded, useReload } from "../../data/resource.ts";
import { useSession } from "../../data/session.ts";
import { savedName, shownName } from "../../image/paths.ts";
import { Button, ButtonLink } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { Bytes } from "../../parts/figure.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { hasHidden, printable } from "../../text/printable.ts";
import { bytesOfText, type TextFile, textFileOf } from "../model/text-file.ts";
import { type Content, contentPath, type Place, readContent, type Version, versionNow, writeContent } from "./calls.ts";
import { draftOf, keepDraft } from "./drafts.ts";

interface EditorProps {
  readonly place: Place;
  /** differs when the sandbox has other files */
  readonly files: string;
}

/** A file: a text in a field that can be changed, or a download. */
export function Editor({ place, files }: EditorProps) {
  const { value, problem, reload } = useLoaded<Content | null>(contentPath(place), (signal) =>
    readContent(place, signal),
  );
  useReload(files, reload);
  const file = value === undefined || value === null ? null : textFileOf(value.bytes);
  if (value === undefined && problem !== undefined) {
    return (
      <>
        <Download place={place} />
        <ProblemNote problem={problem} title="The file cannot be read" onRetry={reload} />
      </>
    );
  }
  if (value === undefined) return <Skeleton lines={10} label="Loading the file" />;
  if (value === null || file === null) {
    return (
      <Empty
        title={value === null ? "This file is too large to be edited" : "This file is not a text"}
        text={value === null ? "Texts up to 1 MiB can be edited here." : "Its bytes are not UTF-8, or have a NUL."}
        action={<Download place={place} />}
      />
    );
  }
  return <TextEditor place={place} file={file} version={value.version} onReload={reload} />;
}

function Download({ place }: { readonly place: Place }) {
  return (
    <ButtonLink icon="download" href={addressOf(contentPath(place))} download={savedName(place.path)}>
      Download
    </ButtonLink>
  );
}

interface TextEditorProps {
  readonly place: Place;
  readonly file: TextFile;
  /** of the file that was read */
  readonly version: Version;
  readonly onReload: () => void;
}

function TextEditor({ place, file, version, onReload }: TextEditorProps) {
  const { may } = useSession();
  const { text, base, isChanged, set, saved } = useText(place, file, version);
  const { save, isBusy, problem, isConflict, leaveConflict } = useSaving(place, { file, text, base, saved });
  const mayWrite = may("instances:exec");
  const load = () => {
    set(null);
    leaveConflict();
    onReload();
  };
  return (
    <>
      <div class="image-tools row wrap gap-2">
        <p class="image-facts flex wrap gap-1-4 muted" role="status">
          <Bytes value={new TextEncoder().encode(text).byteLength} />
          <span>{isChanged ? "changed, not saved" : "as in the sandbox"}</span>
          {file.isMixed ? <span class="warning">mixed line ends, which become alike</span> : null}
          {hasHidden(text) ? <span class="warning">has invisible characters</span> : null}
        </p>
        {isChanged ? <Button onClick={load}>Discard</Button> : null}
        <Button tone="primary" isBusy={isBusy} disabled={!isChanged || !mayWrite} onClick={() => void save(false)}>
          Save
        </Button>
        <Download place={place} />
      </div>
      {problem === undefined ? null : <ProblemNote problem={problem} title="The file was not saved" />}
      {isConflict ? <Conflict onOverwrite={() => void save(true)} onLoad={load} /> : null}
      <textarea
        class="sandbox-editor input mono fill"
        aria-label={`Text of ${printable(shownName(place.path))}`}
        spellcheck={false}
        wrap="off"
        readOnly={!mayWrite}
        value={text}
        onInput={(event) => set(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
          event.preventDefault();
          if (isChanged && !isBusy) void save(false);
        }}
      />
    </>
  );
}

function Conflict({ onOverwrite, onLoad }: { readonly onOverwrite: () => void; readonly onLoad: () => void }) {
  return (
    <div class="problem stack gap-3" role="alert">
      <p>
        <span class="strong">The file has changed in the sandbox.</span> Nothing was saved: your text is still here.
      </p>
      <div class="row wrap gap-2">
        <Button isSmall onClick={onLoad}>
          Load the file
        </Button>
        <Button isSmall tone="danger" onClick={onOverwrite}>
          Overwrite it
        </Button>
      </div>
    </div>
  );
}

/** The edited text, which survives a look at another part of the page. */
function useText(place: Place, file: TextFile, version: Version) {
  const key = contentPath(place);
  const [draft, setDraft] = useState(() => draftOf(key));
  const [last, setLast] = useState<{ readonly text: string; readonly version: Version } | null>(null);
  // The text that was saved here is newer than the one that was read, until another one is read.
  useEffect(() => setLast(null), [version]);
  const read = last ?? { text: file.text, version };
  const text = draft?.text ?? read.text;
  const isChanged = text !== read.text;
  useEffect(() => {
    if (!isChanged) return;
    const warn = (event: BeforeUnloadEvent) => event.preventDefault();
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, [isChanged]);
  const put = (next: typeof draft) => {
    keepDraft(key, next);
    setDraft(next);
  };
  return {
    text,
    /** version of the text from which the edited one began */
    base: draft?.base ?? read.version,
    isChanged,
    /** @param next null: that of the file */
    set: (next: string | null) => put(next === null ? null : { text: next, base: draft?.base ?? read.version }),
    /** The sandbox has this text now. Keys that were pressed meanwhile stay. */
    saved: (savedText: string, savedVersion: Version) => {
      setLast({ text: savedText, version: savedVersion });
      const now = draftOf(key);
      put(now === null || now.text === savedText ? null : { text: now.text, base: savedVersion });
    },
  };
}

interface Saving {
  readonly file: TextFile;
  readonly text: string;
  readonly base: Version;
  readonly saved: (text: string, version: Version) => void;
}

function useSaving(place: Place, { file, text, base, saved }: Saving) {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const [isConflict, setConflict] = useState(false);
  const save = async (overwrites: boolean) => {
    setBusy(true);
    setProblem(undefined);
    setConflict(false);
    try {
      if (!overwrites && (await versionNow(place)) !== base) setConflict(true);
      else saved(text, await writeContent(place, bytesOfText(file, text)));
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  return { save, isBusy, problem, isConflict, leaveConflict: () => setConflict(false) };
}
