import { useRef } from "preact/hooks";
import type { Sandbox } from "../../../client/types.ts";
import { isWriting } from "../../browser/keys.ts";
import { navigate } from "../../browser/router.ts";
import { useLoaded, useReload } from "../../data/resource.ts";
import { useFocusKept } from "../../image/files/focus.ts";
import { PathCrumbs } from "../../image/files/path-crumbs.tsx";
import { parentOf, ROOT } from "../../image/paths.ts";
import { ButtonLink } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { linkTo, type SandboxLink } from "../link.ts";
import { isPassing, STATE_LABELS } from "../model/states.ts";
import { type Listing, readEntry, readListing } from "./calls.ts";
import { Directory } from "./directory.tsx";
import { Editor } from "./editor.tsx";

interface FilesProps {
  readonly sandbox: Sandbox;
  readonly link: SandboxLink;
}

/** The files of a sandbox: those of its machine, or of its head while it has none. */
export function Files({ sandbox, link }: FilesProps) {
  const { state, head } = sandbox;
  if (state === "ended") {
    return (
      <Empty
        title="The sandbox has ended"
        text="Its last saved files are those of its head."
        action={head === null ? null : <ButtonLink href={`/images/${head}`}>Show the image</ButtonLink>}
      />
    );
  }
  if (state === "starting") {
    return <Empty title={STATE_LABELS.starting.text} text="Its files can be read as soon as it runs." />;
  }
  return <PlaceView sandbox={sandbox} link={link} />;
}

function PlaceView({ sandbox, link }: FilesProps) {
  const { uuid, head, state, state_changed_at: changedAt } = sandbox;
  const { id, path } = link;
  const place = { sandbox: uuid, path };
  const { value, problem, reload } = useLoaded<Listing | "file">(`${uuid} ${path}`, async (signal) => {
    const { type } = await readEntry(place, signal);
    return type === "directory" ? await readListing(place, signal) : "file";
  });
  // A rollback gives it other files. They are read when its state has settled: a request could wait, or be refused.
  const settled = useRef("");
  if (!isPassing(state) || settled.current === "") settled.current = `${head} ${changedAt}`;
  const files = settled.current;
  useReload(files, reload);
  const section = useFocusKept(path, value !== undefined);
  const goUp = (event: KeyboardEvent) => {
    if (event.key !== "Backspace" || path === ROOT || isWriting(event.target as Element)) return;
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    navigate(linkTo(id, "files", { path: parentOf(path) }));
  };
  return (
    <section ref={section} class="image-files stack gap-3 shrink" aria-label="Files" tabIndex={-1} onKeyDown={goUp}>
      <PathCrumbs path={path} hrefOf={(step) => linkTo(id, "files", { path: step })} />
      {problem === undefined ? null : (
        <ProblemNote problem={problem} title="This path cannot be shown" onRetry={reload} />
      )}
      {value === undefined && problem === undefined ? <Skeleton lines={8} label="Loading files" /> : null}
      {value === "file" ? <Editor key={`${uuid} ${path}`} place={place} files={files} /> : null}
      {value === undefined || value === "file" ? null : (
        <Directory key={`${uuid} ${path}`} id={id} place={place} listing={value} onChange={reload} />
      )}
    </section>
  );
}
