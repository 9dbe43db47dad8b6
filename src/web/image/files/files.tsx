import { useRef } from "preact/hooks";
import { isWriting } from "../../browser/keys.ts";
import { navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { type ImageLink, linkTo } from "../link.ts";
import { type EncodedPath, parentOf, ROOT } from "../paths.ts";
import { Directory } from "./directory.tsx";
import { FileView } from "./file.tsx";
import { useFocusKept } from "./focus.ts";
import { keptItem, type Listing, readListing } from "./listing-loader.ts";
import { PathCrumbs } from "./path-crumbs.tsx";
import { PathHistory } from "./path-history.tsx";

/** The item at a path: a directory with its entries, or a file. */
type Place = Listing | "file";

/** The files of an image: a directory, or one file. */
export function Files({ link }: { readonly link: ImageLink }) {
  const { image, path } = link;
  const { value, problem, isLoading, reload } = useLoaded<Place>(`${image} ${path}`, async (signal, tell) => {
    // The cached listing says that it is a file, so no listing is requested.
    if (keptItem(image, path)?.type === "file") return "file";
    return (await readListing({ image, path }, signal, tell)) ?? "file";
  });
  const before = usePathBefore(path);
  const section = useFocusKept(path, value !== undefined);
  const goUp = (event: KeyboardEvent) => {
    if (event.key !== "Backspace" || path === ROOT || isWriting(event.target as Element)) return;
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    navigate(linkTo(image, "files", parentOf(path)));
  };
  return (
    <section ref={section} class="image-files stack gap-3 shrink" aria-label="Files" tabIndex={-1} onKeyDown={goUp}>
      <PathCrumbs path={path} hrefOf={(step) => linkTo(image, "files", step)} />
      {problem === undefined ? null : (
        <ProblemNote problem={problem} title="This path cannot be shown" onRetry={reload} />
      )}
      {value === undefined && isLoading ? <Skeleton lines={8} label="Loading files" /> : null}
      {value === undefined ? null : <PathHistory key={`log ${image} ${path}`} image={image} path={path} />}
      {value === "file" ? <FileView key={`${image} ${path}`} link={link} /> : null}
      {value === undefined || value === "file" ? null : (
        <Directory key={`${image} ${path}`} link={link} listing={value} isLoading={isLoading} before={before} />
      )}
    </section>
  );
}

/** The previous path; null for the first one. */
function usePathBefore(path: EncodedPath): EncodedPath | null {
  const paths = useRef<readonly [EncodedPath | null, EncodedPath]>([null, path]);
  if (paths.current[1] !== path) paths.current = [paths.current[1], path];
  return paths.current[0];
}
