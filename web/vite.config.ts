import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8070"; // `onward up`, for `npm run dev`

export default defineConfig({
  base: "/ui/",
  plugins: [react()],
  build: {
    outDir: "../src/onward/doors/page/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's policy allows no data: URLs
    modulePreload: { polyfill: false },
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first that know light-dark()
  },
  server: { proxy: Object.fromEntries(["/api", "/v1", "/health", "/metrics"].map((path) => [path, server])) },
});
