import { startKeys } from "../browser/keys.ts";
import { useRoute } from "../browser/router.ts";
import { startTheme } from "../browser/theme.ts";
import { listenEarly } from "../data/changes.ts";
import { connection } from "../data/connection.ts";
import { loadSession, sessionState } from "../data/session.ts";
import { useStore } from "../data/store.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Toasts } from "../parts/toast.tsx";
import { Frame } from "./frame.tsx";
import { placeOf } from "./routes.tsx";
import { SignIn } from "./sign-in.tsx";
import { preload, ViewSlot } from "./view-slot.tsx";

/**
 * Starts everything that the first drawing need not wait for: theme, keys, session, the chunk of the view with its first
 * data, and the stream of changes.
 */
export function start(): void {
  startTheme();
  startKeys();
  const place = placeOf(location.pathname);
  if (place !== undefined) void preload(place).then((module) => module?.prepare?.());
  void loadSession();
  listenEarly();
}

/** The page as a whole. */
export function App() {
  const state = useStore(sessionState);
  return (
    <>
      <Content state={state} />
      <Toasts />
    </>
  );
}

function Content({ state }: { readonly state: ReturnType<typeof sessionState.get> }) {
  const { path } = useRoute();
  const isAway = useStore(connection) === "away";
  if (state.is === "out") return <SignIn hasEnded={state.hasEnded} />;
  if (state.is === "unknown") {
    return isAway ? (
      <p class="connection connection-first">The appliance does not answer. This page reconnects by itself.</p>
    ) : null;
  }
  const place = placeOf(path);
  // Another tab may have signed in to another account: nothing of the previous one stays.
  return (
    <Frame key={state.session.account}>
      {place === undefined ? <NotFound /> : <ViewSlot key={place.name} place={place} />}
    </Frame>
  );
}

function NotFound() {
  return (
    <>
      <PageHeader heading="Page not found" />
      <Empty
        title="Nothing has this address"
        text="Part of the link may be missing."
        action={<ButtonLink href="/">Go to branches</ButtonLink>}
      />
    </>
  );
}
