import "./styles/main.css";
import { render } from "preact";
import { App, start } from "./app/app.tsx";

const root = document.getElementById("app");
if (root !== null) {
  start();
  render(<App />, root);
}
