import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { queryOf } from "../browser/links.ts";
import { navigate, useRoute } from "../browser/router.ts";
import { createStore, useStore } from "../data/store.ts";
import type { LoadedBranches } from "./use-branches.ts";

const FORM = "coppice.branches.form";
/** Media query for windows that are too narrow for a tree. */
const NARROW = matchMedia("(max-width: 48rem)");
const isNarrow = createStore(NARROW.matches);
NARROW.addEventListener("change", () => isNarrow.set(NARROW.matches));

/** Delay before the address changes, in `milliseconds`: browsers limit the number of changes. */
const ADDRESS_MS = 250;

/** The state of the view that the address names. */
export interface ViewState {
  readonly query: string;
  readonly focusId: string | null;
  readonly isList: boolean;
  readonly selectedKey: string | null;
  /** the image that the address names */
  readonly namedId: string | null;
  /** the item to scroll to; a new object scrolls again */
  readonly target: { readonly key: string } | null;
  search(query: string): void;
  focus(id: string | null): void;
  chooseForm(isList: boolean): void;
  /** @param isImage the address names it */
  select(key: string | null, isImage: boolean): void;
  /** Brings an item into view. */
  show(key: string): void;
  /** Selects an image, brings it out of all folds and into view. */
  reveal(id: string): void;
  /** Writes pending changes to the address before another view opens, so that Back restores them. */
  keep(): void;
}

/** Keeps the state of the view in the address, so that a link restores it: `?image=…&q=…&focus=…&form=list`. */
export function useViewState({ branches }: LoadedBranches): ViewState {
  const { parameters } = useRoute();
  const narrow = useStore(isNarrow);
  const [query, setQuery] = useState(parameters.get("q") ?? "");
  const [selectedKey, setSelectedKey] = useState(parameters.get("image"));
  const [target, setTarget] = useState<{ readonly key: string } | null>(() =>
    selectedKey === null ? null : { key: selectedKey },
  );
  const imageId = useRef(selectedKey);
  const focusId = parameters.get("focus");
  const form = parameters.get("form") ?? localStorage.getItem(FORM);
  const isList = form === "list" || (form !== "tree" && narrow);

  const { change: address, keep } = useAddress((given) => {
    const image = given.get("image");
    setQuery(given.get("q") ?? "");
    setSelectedKey(image);
    imageId.current = image;
    branches.select(image);
    if (image === null) return;
    branches.reveal(image);
    setTarget({ key: image });
  });
  useEffect(() => {
    branches.filter = { ...branches.filter, query, focusId };
  }, [branches, query, focusId]);
  useEffect(() => {
    if (selectedKey !== null && target !== null) branches.reveal(selectedKey);
  }, [branches]);

  const select = (key: string | null, isImage: boolean): void => {
    setSelectedKey(key);
    branches.select(isImage ? key : null);
    imageId.current = isImage ? key : null;
    address({ image: imageId.current });
  };
  return {
    query,
    focusId,
    isList,
    selectedKey,
    namedId: parameters.get("image"),
    target,
    search: (text) => {
      setQuery(text);
      address({ q: text });
    },
    focus: (id) => {
      address({ focus: id, image: imageId.current }, true);
      if (imageId.current !== null) setTarget({ key: imageId.current });
    },
    chooseForm: (list) => {
      localStorage.setItem(FORM, list ? "list" : "tree");
      address({ form: list ? "list" : "tree" }, true);
      if (selectedKey !== null) setTarget({ key: selectedKey });
    },
    select,
    keep,
    show: (key) => setTarget({ key }),
    reveal: (id) => {
      branches.reveal(id);
      select(id, true);
      setTarget({ key: id });
    },
  };
}

type Values = Readonly<Record<string, string | null>>;

interface Address {
  /** @param isStep changes the address at once, with a new entry in the history */
  change(values: Values, isStep?: boolean): void;
  /** Writes a pending change at once. */
  keep(): void;
}

/**
 * Changes the query of the address, after a moment without another change.
 * @param onGiven is called with a query from elsewhere: a link, or the history
 */
function useAddress(onGiven: (given: URLSearchParams) => void): Address {
  const { parameters } = useRoute();
  const written = useRef(location.search);
  const waiting = useRef<{ values: Values; timer: ReturnType<typeof setTimeout> | undefined }>({
    values: {},
    timer: undefined,
  });
  const drainPending = (): Values => {
    const { values, timer } = waiting.current;
    clearTimeout(timer);
    waiting.current = { values: {}, timer: undefined };
    return values;
  };
  useLayoutEffect(() => {
    if (location.search === written.current || location.pathname !== "/") return;
    // Pending values belong to the previous address.
    drainPending();
    written.current = location.search;
    onGiven(parameters);
  }, [parameters.toString()]);
  useEffect(() => () => clearTimeout(waiting.current.timer), []);
  const write = (isStep: boolean) => {
    const values = drainPending();
    const parameters = Object.fromEntries(new URLSearchParams(location.search));
    const query = queryOf({ ...parameters, ...values });
    if (location.pathname !== "/") return;
    navigate(query === "?" ? "/" : query, { replace: !isStep });
    written.current = location.search;
  };
  return {
    change(values, isStep = false) {
      const all = { ...drainPending(), ...values };
      waiting.current.values = all;
      if (isStep) write(true);
      else waiting.current.timer = setTimeout(() => write(false), ADDRESS_MS);
    },
    keep() {
      if (waiting.current.timer !== undefined) write(false);
    },
  };
}
