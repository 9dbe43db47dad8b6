import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Breadcrumbs } from "../../parts/breadcrumbs.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { type ImageLink, linkTo } from "../link.ts";
import { type EncodedPath, shownName, stepsTo } from "../paths.ts";
import { useLoaded } from "../use-loaded.ts";
import { Directory } from "./directory.tsx";
import { FileView } from "./file.tsx";
import { keptItem, type Listing, readListing } from "./listing-loader.ts";

/** What is at a path: a directory with its entries, or a file. */
type Place = Listing | "file";

/** The files of an image: a directory, or one file. */
export function Files({ link }: { readonly link: ImageLink }) {
  const { image, path } = link;
  const { value, problem, isLoading, reload } = useLoaded<Place>(`${image} ${path}`, async (signal, tell) => {
    // It need not be asked for as a directory.
    if (keptItem(image, path)?.type === "file") return "file";
    return (await readListing({ image, path }, signal, tell)) ?? "file";
  });
  const section = useFocusKept(path, value !== undefined);
  return (
    <section ref={section} class="image-files" aria-label="Files" tabIndex={-1}>
      <PathCrumbs image={image} path={path} />
      {problem === undefined ? null : (
        <ProblemNote problem={problem} title="This path cannot be shown" onRetry={reload} />
      )}
      {value === undefined && isLoading ? <Skeleton lines={8} label="Loading files" /> : null}
      {value === "file" ? <FileView key={`${image} ${path}`} link={link} /> : null}
      {value === undefined || value === "file" ? null : (
        <Directory key={`${image} ${path}`} link={link} listing={value} isLoading={isLoading} />
      )}
    </section>
  );
}

/**
 * Whoever opens an entry of a list by the keyboard goes on in what it shows: the list that had the focus is gone then, and
 * the focus with it.
 */
function useFocusKept(path: EncodedPath, isShown: boolean): RefObject<HTMLElement | null> {
  const section = useRef<HTMLElement>(null);
  const shown = useRef(path);
  useEffect(() => {
    if (!isShown || shown.current === path) return;
    shown.current = path;
    if (document.activeElement !== document.body) return;
    const list = section.current?.querySelector<HTMLElement>("[role=grid]");
    (list ?? section.current)?.focus({ preventScroll: true });
  }, [path, isShown]);
  return section;
}

function PathCrumbs({ image, path }: { readonly image: string; readonly path: EncodedPath }) {
  const steps = stepsTo(path);
  const crumbs = steps.map((step) => {
    const label = <GuestText text={shownName(step)} isMono />;
    return step === path ? { label } : { label, href: linkTo(image, "files", step) };
  });
  return <Breadcrumbs label="Path" crumbs={crumbs} />;
}
